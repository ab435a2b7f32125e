#include "common/transport/tcp/tcp_transport.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/job/leaf_shares.h"
#include "common/watch/roll_call.h"

namespace starring {
namespace {

// How often a loss is looked at while it waits for its reason: no event says that the time is over.
constexpr std::chrono::microseconds kLossPause{5000};

absl::Status LeftError() {
  return absl::UnavailableError(
      "has ended its part of the job, and this rank still waits for it: its own output says why");
}

}  // namespace

int64_t TcpUnexpectedBytesMax(int world_size, std::span<const int> leaf_owners) {
  int node_count_max = 1;  // of one share
  if (!leaf_owners.empty()) {
    for (const Contributor& one : ContributorsOf(leaf_owners)) node_count_max = std::max(node_count_max, one.node + 1);
  }
  // A sender may be done with its blocks while this rank has still to post the receives of their parameters, and may
  // begin as many further ones. For each block, a peer sends one message in each round of the ring. In a co-located
  // star it sends one message for each node of its share.
  const int64_t of_a_block = std::max(node_count_max, world_size - 1);
  const int64_t messages = 2 * int64_t{RingBlocksInFlightMax(world_size)} * of_a_block;
  const int64_t message_bytes = kChunkBytesMax + kTcpKeptMessageBytes;
  return messages * message_bytes + kTcpControlBytesMax;
}

int TcpSilenceMs(absl::Duration exchange_deadline) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(exchange_deadline), kTcpSilenceMsMin, kTcpSilenceMsMax));
}

// One of the two connections to a peer, and the message that arrives on it.
class TcpTransport::Connection final : public TcpStream::Receiver {
 public:
  Connection(TcpTransport* transport, int peer_rank, Purpose purpose, TcpStream the_stream)
      : peer(peer_rank),
        is_for_notices(purpose == Purpose::kNotices),
        stream(std::move(the_stream)),
        transport_(*transport) {}

  absl::StatusOr<std::byte*> OnHeader(int tag, int64_t length) override {
    return is_for_notices ? transport_.BeginNotice(*this, tag, length) : transport_.BeginMessage(*this, tag, length);
  }
  void OnMessage() override { transport_.EndMessage(*this); }
  void OnGoodbye() override;

  const int peer;
  const bool is_for_notices;
  TcpStream stream;
  uint32_t number = 0;  // in connections_
  uint32_t events = 0;  // that epoll reports
  bool is_open = true;
  bool has_goodbye = false;
  absl::Status write_error;
  std::optional<Token> arriving;  // of the receive whose message is arriving
  std::vector<std::byte> arriving_notice;

 private:
  TcpTransport& transport_;
};

TcpTransport::TcpTransport(const Options& options)
    : rank_(options.rank),
      unexpected_bytes_max_(options.unexpected_bytes_max > 0
                                ? options.unexpected_bytes_max
                                : TcpUnexpectedBytesMax(static_cast<int>(options.links.size()))),
      loss_grace_(options.loss_grace_ms),
      last_notice_(options.last_notice_ms),
      last_words_(absl::Milliseconds(options.last_words_ms)),
      peers_(options.links.size()) {}

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(Options options) {
  const size_t world_size = options.links.size();
  const int worker_count = static_cast<int>(world_size) - options.server_count;
  CHECK_GE(options.rank, 0);
  CHECK_LT(options.rank, world_size);
  std::unique_ptr<TcpTransport> transport(new TcpTransport(options));
  transport->epoll_ = Socket(epoll_create1(EPOLL_CLOEXEC));
  transport->wake_ = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (transport->epoll_.fd() < 0 || transport->wake_.fd() < 0) {
    return absl::InternalError(absl::StrCat("cannot watch connections: ", ErrnoText(errno)));
  }
  for (size_t rank = 0; rank < world_size; ++rank) {
    if (static_cast<int>(rank) == options.rank) continue;
    Link& link = options.links[rank];
    transport->peers_[rank].name =
        absl::StrCat(ProcessName(static_cast<int>(rank), worker_count), " (", link.address, ")");
    const auto add = [&](Purpose purpose, TcpChannel& channel) {
      return transport->AddConnection(static_cast<int>(rank), purpose, std::move(channel), options.silence_ms);
    };
    RETURN_IF_ERROR(add(Purpose::kMessages, link.messages));
    RETURN_IF_ERROR(add(Purpose::kNotices, link.notices));
  }
  return transport;
}

absl::Status TcpTransport::AddConnection(int peer, Purpose purpose, TcpChannel channel, int silence_ms) {
  CHECK_GE(channel.fd(), 0);
  auto connection = std::make_unique<Connection>(this, peer, purpose, TcpStream(std::move(channel), silence_ms));
  connection->number = static_cast<uint32_t>(connections_.size());
  connection->events = EPOLLIN;
  connections_.push_back(connection.get());
  epoll_event event = {.events = connection->events, .data = {.u32 = connection->number}};
  // A user may watch only so many (/proc/sys/fs/epoll/max_user_watches).
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, connection->stream.fd(), &event) != 0) {
    return error_ = absl::InternalError(absl::StrCat("cannot watch connections: ", ErrnoText(errno)));
  }
  (purpose == Purpose::kNotices ? peers_[peer].notices : peers_[peer].messages) = std::move(connection);
  return absl::OkStatus();
}

TcpTransport::~TcpTransport() {
  std::vector<const Socket*> undelivered;
  for (const Peer& peer : peers_) {
    if (peer.messages == nullptr || peer.notices == nullptr) continue;
    const bool notices_are_open = peer.notices->is_open && peer.notices->write_error.ok();
    const Socket& notices = peer.notices->stream.socket();
    if (notices_are_open && !IsDelivered(notices)) undelivered.push_back(&notices);
    // A rank that still owes a message does not leave in order. Neither connection then gets a last word.
    if (!error_.ok() || peer.messages->stream.has_unsent()) continue;
    if (peer.messages->is_open && peer.messages->write_error.ok()) peer.messages->stream.SayGoodbye();
    if (notices_are_open) peer.notices->stream.SayGoodbye();
  }
  HangUpAll(std::move(undelivered), last_words_);
}

void TcpTransport::Complete(Token token) {
  done_.push_back(token);
  Raise(has_work_);
}

// A post may complete at once. Another thread that sleeps in Wait would learn of it only when something arrives,
// perhaps much later. A thread counts itself in waiting_ before it looks at the flags and sleeps; this one sets the
// flag before it looks at waiting_. These operations are sequentially consistent, so one of the two sees the other.
void TcpTransport::Raise(std::atomic<bool>& flag) {
  if (!flag.load(std::memory_order_relaxed) && !flag.exchange(true) && waiting_.load() > 0) Wake();
}

void TcpTransport::PostSend(int peer, int tag, std::span<const std::byte> data, Token token) {
  CHECK(peer >= 0 && peer < world_size() && peer != rank_) << "rank " << rank_ << " sends to rank " << peer;
  Peer& to = peers_[peer];
  Connection& connection = tag == kNoticeTag ? *to.notices : *to.messages;
  const bool is_closed = !connection.is_open || connection.has_goodbye || !connection.write_error.ok();
  if (connection.is_for_notices) {
    // A rank that has left or is lost needs no notices. For a rank that reads none, notices must not pile up.
    if (is_closed || connection.stream.unsent_count() >= kTcpNoticesUnsentMax) return Complete(token);
  } else if (is_closed) {
    // Without its messages the job cannot go on.
    to.is_wanted = true;
    return Lose(to, connection.write_error.ok() ? LeftError() : connection.write_error);
  }
  const bool is_first = !connection.stream.has_unsent();
  connection.stream.Push(tag, data, token);
  // Otherwise the kernel takes no more at the moment, and epoll reports when it does.
  if (is_first) Send(connection, kTcpPollBytesMax);
}

void TcpTransport::Send(Connection& connection, int64_t budget) {
  const size_t before = done_.size();
  if (absl::Status status = connection.stream.Write(budget, done_); !status.ok()) {
    // Data that the peer sent before it ended can still be read. The end of the stream then follows.
    connection.write_error = std::move(status);
    DropUnsent(connection);
  }
  if (done_.size() > before) Raise(has_work_);
  Watch(connection);
}

// A notice that cannot be sent any more is over: the rank that gives up must not wait for it. A message is not.
void TcpTransport::DropUnsent(Connection& connection) {
  for (const Token token : connection.stream.DropUnsent()) {
    if (connection.is_for_notices) {
      Complete(token);
    } else {
      peers_[connection.peer].is_wanted = true;
    }
  }
}

void TcpTransport::PostReceive(int peer, int tag, std::span<std::byte> data, Token token) {
  CHECK(peer >= 0 && peer < world_size() && peer != rank_) << "rank " << rank_ << " receives from rank " << peer;
  CHECK_NE(tag, kNoticeTag);
  Peer& from = peers_[peer];
  Connection& connection = *from.messages;
  // The oldest message with the tag comes first: messages of one tag match in order. The list is bounded by
  // unexpected_bytes_max_, in which an empty message has a cost, too.
  const auto found = std::find_if(from.unexpected.begin(), from.unexpected.end(),
                                  [tag](const Unexpected& message) { return message.tag == tag; });
  if (found == from.unexpected.end()) {
    from.receives.push_back({.tag = tag, .data = data, .token = token});
    return NeedPeer(peer);
  }
  if (const absl::Status status = CheckLength({.tag = tag, .data = data, .token = token}, found->length);
      !status.ok()) {
    return Fail(from, status);
  }
  if (token.bytes != nullptr) *token.bytes = found->length;
  if (found->complete) {
    if (found->length > 0) std::memcpy(data.data(), found->data.get(), found->length);
    Complete(token);
  } else {
    connection.stream.Redirect(data.data());
    connection.arriving = token;
  }
  from.unexpected_bytes -= found->cost();
  from.unexpected.erase(found);
}

absl::Status TcpTransport::CheckLength(const Receive& receive, int64_t length) {
  const bool may_be_shorter = receive.token.bytes != nullptr;
  const int64_t expected = std::ssize(receive.data);
  if (length == expected || (may_be_shorter && length < expected)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("has sent ", length, " bytes with tag ", receive.tag,
                                          " where this rank expects ", may_be_shorter ? "at most " : "", expected,
                                          ": all ranks must run the same build with the same flags"));
}

void TcpTransport::NeedPeer(int peer) {
  Peer& from = peers_[peer];
  if (from.messages->is_open && !from.messages->has_goodbye) return;
  from.is_wanted = true;
  Lose(from, LeftError());
}

absl::StatusOr<std::byte*> TcpTransport::BeginMessage(Connection& connection, int tag, int64_t length) {
  Peer& from = peers_[connection.peer];
  const auto found = std::find_if(from.receives.begin(), from.receives.end(),
                                  [tag](const Receive& receive) { return receive.tag == tag; });
  if (found != from.receives.end()) {
    RETURN_IF_ERROR(CheckLength(*found, length));
    if (found->token.bytes != nullptr) *found->token.bytes = length;
    std::byte* const destination = found->data.data();
    connection.arriving = found->token;
    from.receives.erase(found);
    return destination;
  }
  // Decided by the header alone, before any memory is taken.
  if (length > unexpected_bytes_max_ || from.unexpected_bytes + length + kTcpKeptMessageBytes > unexpected_bytes_max_) {
    return absl::InternalError(
        absl::StrCat("has sent ", from.unexpected_bytes, " bytes for which no receive is posted, and now a message of ",
                     length, " bytes with tag ", tag, ", but a correct rank has at most ", unexpected_bytes_max_,
                     " under way: all ranks must run the same build with the same flags"));
  }
  from.unexpected.push_back(
      {.tag = tag, .data = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(length)), .length = length});
  from.unexpected_bytes += from.unexpected.back().cost();
  connection.arriving.reset();
  // The bytes have memory of their own, so the address stays valid while the list grows.
  return from.unexpected.back().data.get();
}

absl::StatusOr<std::byte*> TcpTransport::BeginNotice(Connection& connection, int tag, int64_t length) {
  if (tag != kNoticeTag || length > kAbortNoticeBytesMax) {
    return absl::InternalError(absl::StrCat("has sent ", length, " bytes with tag ", tag,
                                            " on its connection for notices, which have tag ", kNoticeTag,
                                            " and at most ", kAbortNoticeBytesMax, " bytes"));
  }
  connection.arriving_notice.resize(static_cast<size_t>(length));
  return connection.arriving_notice.data();
}

void TcpTransport::EndMessage(Connection& connection) {
  Peer& from = peers_[connection.peer];
  if (connection.is_for_notices) {
    notices_.push_back({.peer = connection.peer, .data = std::move(connection.arriving_notice)});
    connection.arriving_notice = {};
    ++from.notice_count;
    Raise(has_work_);
  } else if (connection.arriving.has_value()) {
    Complete(*std::exchange(connection.arriving, std::nullopt));
  } else {
    // One message arrives at a time, so it is the one that was kept last.
    from.unexpected.back().complete = true;
  }
}

void TcpTransport::Connection::OnGoodbye() {
  has_goodbye = true;
  if (is_for_notices) return;
  Peer& from = transport_.peers_[peer];
  from.has_left = true;
  if (from.receives.empty()) return;
  from.is_wanted = true;
  transport_.Lose(from, LeftError());
}

absl::Status TcpTransport::Poll(std::vector<Token>& completed) {
  if (!error_.ok()) return error_;
  std::array<epoll_event, kTcpStreamsPerPollMax> events;
  // The kernel keeps its list of ready streams in turns: those that are returned go to its end.
  const int count = epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), 0);
  // Together they move no more than one poll may, so that none keeps the caller from its other work.
  for (int i = 0; i < count; ++i) Serve(*connections_[events[i].data.u32], events[i].events, kTcpPollBytesMax / count);
  // A message that arrived before a loss counts first: it may be the verdict after which the peer has ended.
  if (loss_count_ > 0 && done_.empty()) JudgeLosses();
  completed.insert(completed.end(), done_.begin(), done_.end());
  done_.clear();
  has_work_.store(!notices_.empty() || !error_.ok());
  has_losses_.store(loss_count_ > 0);
  return error_;
}

void TcpTransport::Serve(Connection& connection, uint32_t events, int64_t share) {
  if (!connection.is_open) return;
  if ((events & EPOLLOUT) != 0 && connection.stream.has_unsent()) Send(connection, share);
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) == 0) return;
  // Notices are read in small portions, so that few arrive after the one that closes the valve.
  const int64_t budget = connection.is_for_notices ? std::min<int64_t>(share, kAbortNoticeBytesMax) : share;
  if (const absl::Status status = connection.stream.Read(budget, connection); !status.ok()) {
    End(connection, status);
  } else {
    Watch(connection);
  }
}

void TcpTransport::Watch(Connection& connection) {
  if (!connection.is_open) return;
  uint32_t events = 0;
  if (!connection.is_for_notices || peers_[connection.peer].notice_count < kTcpNoticesKeptMax) events |= EPOLLIN;
  if (connection.stream.has_unsent()) events |= EPOLLOUT;
  // Most calls change nothing, and then cost no system call.
  if (std::exchange(connection.events, events) == events) return;
  epoll_event event = {.events = events, .data = {.u32 = connection.number}};
  CHECK(epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, connection.stream.fd(), &event) == 0) << ErrnoText(errno);
}

void TcpTransport::End(Connection& connection, const absl::Status& why) {
  connection.is_open = false;
  DropUnsent(connection);
  Peer& peer = peers_[connection.peer];
  if (!connection.is_for_notices && (connection.arriving.has_value() || !peer.receives.empty())) peer.is_wanted = true;
  // A stream that has ended would be ready for ever.
  CHECK(epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, connection.stream.fd(), nullptr) == 0) << ErrnoText(errno);
  if (!absl::IsUnavailable(why)) return Fail(peer, why);
  // The last messages of a rank that leaves may be late, on a network that loses packets, and say that it leaves.
  if (connection.is_for_notices && connection.has_goodbye) return;
  // The first call that failed got the reason, the call after it only that the connection is closed.
  Lose(peer, connection.write_error.ok() ? why : connection.write_error);
}

void TcpTransport::Lose(Peer& peer, const absl::Status& why) {
  // The first reason is the cause. Later ones follow from it.
  if (peer.loss.has_value()) return;
  peer.loss = {.why = why, .since = Clock::now()};
  ++loss_count_;
  Raise(has_losses_);
}

// The earliest loss is the cause of those that follow: ranks that notice it end, too.
void TcpTransport::JudgeLosses() {
  const auto both_ended = [](const Peer& peer) { return !peer.messages->is_open && !peer.notices->is_open; };
  const Peer* first = nullptr;
  for (Peer& peer : peers_) {
    if (!peer.loss.has_value()) continue;
    if (peer.has_left && !peer.is_wanted) {
      peer.loss.reset();
      --loss_count_;
    } else if (first == nullptr || peer.loss->since < first->loss->since) {
      first = &peer;
    }
  }
  if (first == nullptr) return;
  const auto waited = Clock::now() - first->loss->since;
  // A rank that leaves too early has a reason, often another rank's end, whose notice will reach this rank, too.
  if (waited < loss_grace_ && (!both_ended(*first) || first->has_left)) return;
  if (!notices_.empty() && waited < last_notice_) return;
  Fail(*first, first->has_left ? LeftError() : first->loss->why);
}

void TcpTransport::Fail(const Peer& peer, const absl::Status& why) {
  if (!error_.ok()) return;
  error_ = absl::Status(why.code(), absl::StrCat(peer.name, " ", std::string(why.message())));
  Raise(has_work_);
}

// Does not look at what Poll owns: another thread may be in Poll.
void TcpTransport::Wait(std::chrono::microseconds longest) {
  ++waiting_;  // before the flags are read: see Raise
  if (!has_work_.load()) Sleep(has_losses_.load() ? std::min(longest, kLossPause) : longest);
  --waiting_;
}

void TcpTransport::Sleep(std::chrono::microseconds longest) {
  longest = std::max(longest, std::chrono::microseconds(0));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec patience = {.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(longest - seconds).count()};
  std::array<pollfd, 2> polled = {
      {{.fd = epoll_.fd(), .events = POLLIN, .revents = 0}, {.fd = wake_.fd(), .events = POLLIN, .revents = 0}}};
  if (ppoll(polled.data(), polled.size(), &patience, nullptr) <= 0 || polled[1].revents == 0) return;
  uint64_t count = 0;
  // Nothing to read is no failure: another thread that waited has read it.
  [[maybe_unused]] const ssize_t got = read(wake_.fd(), &count, sizeof(count));
}

void TcpTransport::Wake() {
  const uint64_t one = 1;
  // A counter that is full wakes as well.
  [[maybe_unused]] const ssize_t written = write(wake_.fd(), &one, sizeof(one));
}

std::optional<Transport::Received> TcpTransport::TryReceive(int tag, std::span<std::byte> data) {
  CHECK_EQ(tag, kNoticeTag);
  if (notices_.empty()) return std::nullopt;
  const Notice notice = std::move(notices_.front());
  notices_.pop_front();
  CHECK_LE(notice.data.size(), data.size());
  std::copy(notice.data.begin(), notice.data.end(), data.begin());
  --peers_[notice.peer].notice_count;
  // With a notice fewer here, the peer's next ones may be read again.
  Watch(*peers_[notice.peer].notices);
  if (notices_.empty() && done_.empty() && error_.ok()) has_work_.store(false);
  return Received{.peer = notice.peer, .bytes = std::ssize(notice.data)};
}

}  // namespace starring
