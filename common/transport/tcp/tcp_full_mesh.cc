#include "common/transport/tcp/tcp_full_mesh.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/network/address.h"
#include "common/watch/roll_call.h"

namespace starring {
namespace {

using Purpose = TcpHello::Purpose;

// The part of the join deadline in which a rank dials others again. Then it tells rank 0 why it gives up, and rank 0
// tells all ranks before its own deadline.
constexpr double kRedialPart = 0.9;

// "rank 2", "ranks 2, 3 and 1021 more"; with servers "rank 2, server 0"
std::string RanksText(const std::vector<int>& ranks, int worker_count) {
  if (ranks.back() >= worker_count) return NameProcesses(ranks, worker_count);
  const size_t named = std::min<size_t>(ranks.size(), kRanksNamedMax);
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<int64_t>(named), ", "));
  if (ranks.size() > named) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

}  // namespace

absl::Status TcpFullMesh::About(const std::string& name, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(name, " ", std::string(why.message())));
}

// At least 1: with 0 the last part of a millisecond would be spent in a busy loop.
int TcpFullMesh::PollMs(Clock::time_point end) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(absl::FromChrono(end - Clock::now())) + 1, 1, 1000));
}

pollfd TcpFullMesh::Polled(TcpFrameConnection& connection) {
  const auto events = static_cast<short>(POLLIN | (connection.has_unsent() ? POLLOUT : 0));
  return {.fd = connection.fd(), .events = events, .revents = 0};
}

TcpFullMesh::TcpFullMesh(TcpRendezvousOptions options)
    : rank_(options.rank),
      world_size_(options.world_size),
      options_(std::move(options)),
      report_(options_.say),
      listener_(std::move(options_.listener)),
      members_(world_size_),
      links_(world_size_) {
  absl::Duration patience = BoundedDeadline(options_.join_deadline);
  // Rank 0 knows the cause, so the others give its verdict a moment longer to arrive.
  if (rank_ != 0) patience += absl::Milliseconds(kVerdictGraceMs);
  deadline_ = begin_ + absl::ToChronoNanoseconds(patience);
  redial_until_ = begin_ + absl::ToChronoNanoseconds(BoundedDeadline(options_.join_deadline) * kRedialPart);
  if (options_.stall_report > absl::ZeroDuration()) {
    report_at_ = begin_ + absl::ToChronoNanoseconds(BoundedDeadline(options_.stall_report));
  }
}

absl::StatusOr<std::vector<TcpTransport::Link>> TcpFullMesh::Connect() {
  const absl::Status status = rank_ == 0 ? Lead() : Follow();
  if (status.ok()) {
    report_.Close(0, Clock::now());
    return std::move(links_);
  }
  std::vector<const Socket*> told;
  for (Member& member : members_) {
    if (!member.connection.has_value()) continue;
    member.connection->Refuse(status);
    told.push_back(&member.connection->socket());
  }
  // The verdict must arrive before the connections are closed.
  HangUpAll(std::move(told), absl::Milliseconds(kTcpLastWordsMs));
  return status;
}

absl::Status TcpFullMesh::Lead() {
  if (!listener_.has_value() && options_.bound_fd >= 0) {
    ASSIGN_OR_RETURN(listener_, TcpListener::Adopt(Socket(options_.bound_fd), options_.rendezvous), "--rendezvous_fd");
  } else if (!listener_.has_value()) {
    ASSIGN_OR_RETURN(listener_, TcpListener::Listen(options_.rendezvous), "--rendezvous");
  }
  const auto is_missing = [](const Member& member) { return !member.connection.has_value(); };
  RETURN_IF_ERROR(RunUntil([&] { return RanksThatAre(is_missing).empty(); }));
  RETURN_IF_ERROR(CheckAddresses());
  table_.push_back(options_.rendezvous);
  for (int rank = 1; rank < world_size_; ++rank) table_.push_back(members_[rank].address);
  const std::string table = absl::StrJoin(table_, "\n");
  phase_ = Phase::kMesh;
  for (int rank = 1; rank < world_size_; ++rank) members_[rank].connection->Send(TcpFrameKind::kTable, table);
  const auto is_not_ready = [](const Member& member) { return !member.is_ready; };
  RETURN_IF_ERROR(RunUntil([&] { return IsMeshComplete() && RanksThatAre(is_not_ready).empty(); }));
  phase_ = Phase::kGo;
  // The transport finds ranks that end from here on.
  for (int rank = 1; rank < world_size_; ++rank) members_[rank].connection->Send(TcpFrameKind::kGo, "");
  return absl::OkStatus();
}

absl::Status TcpFullMesh::Follow() {
  RETURN_IF_ERROR(Register());
  RETURN_IF_ERROR(RunUntil([&] { return !table_.empty(); }));
  phase_ = Phase::kMesh;
  // The higher one of two ranks dials, or both would.
  DialLowerRanks();
  RETURN_IF_ERROR(RunUntil([&] { return IsMeshComplete(); }));
  phase_ = Phase::kGo;
  members_[0].connection->Send(TcpFrameKind::kReady, "");
  return RunUntil([&] { return may_go_; });
}

// A rank that reached rank 0 by loopback listens there, where ranks of other hosts cannot reach it.
absl::Status TcpFullMesh::CheckAddresses() const {
  const auto is_loopback = [](const Member& member) {
    return IsLoopbackHost(member.address.substr(0, member.address.rfind(':')));
  };
  const std::vector<int> near = RanksThatAre(is_loopback);
  const std::vector<int> far = RanksThatAre([&](const Member& member) { return !is_loopback(member); });
  if (near.empty() || far.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", near[0], " listens at ", members_[near[0]].address, ", which rank ", far[0], " at ",
                   members_[far[0]].address, " cannot reach: --rendezvous=", options_.rendezvous,
                   " means loopback on rank 0's own host, give the address of its network interface"));
}

absl::Status TcpFullMesh::RunUntil(absl::FunctionRef<bool()> done) {
  while (!done()) {
    if (Clock::now() >= deadline_) {
      return absl::DeadlineExceededError(absl::StrCat(
          DescribeMissing(), " within ", absl::FormatDuration(options_.join_deadline),
          last_refusal_.empty() ? "" : absl::StrCat("; the last connection that was refused: ", last_refusal_)));
    }
    ReportStall([&] { return DescribeMissing(); });
    RETURN_IF_ERROR(Round());
  }
  return absl::OkStatus();
}

// When it is time, and once only: says for which ranks this rank waits.
void TcpFullMesh::ReportStall(absl::FunctionRef<std::string()> describe) {
  const Clock::time_point now = Clock::now();
  if (now < report_at_) return;
  report_at_ = Clock::time_point::max();
  report_.Open(0, begin_, StallSentence(now - begin_, "joining", describe()));
}

int TcpFullMesh::PollTimeoutMs() const {
  Clock::time_point end = std::min(deadline_, report_at_);
  if (!arrivals_.empty()) end = std::min(end, arrivals_.front().deadline);
  for (const Dialled& dialled : dialled_) end = std::min(end, dialled.deadline);
  return PollMs(end);
}

// Waits for an event, and then goes on with every connection that has one.
absl::Status TcpFullMesh::Round() {
  // The list is made for each call, because connections come and go. poll itself looks at as many entries.
  std::vector<pollfd> polled = {{.fd = listener_->fd(), .events = POLLIN, .revents = 0}};
  for (Arrival& arrival : arrivals_) polled.push_back(Polled(arrival.door.connection()));
  for (Dialled& dialled : dialled_) polled.push_back(PolledDial(dialled));
  for (Member& member : members_) {
    if (member.connection.has_value()) polled.push_back(Polled(*member.connection));
  }
  // If the call is interrupted, no descriptor has an event, and the caller looks at its deadline.
  poll(polled.data(), polled.size(), PollTimeoutMs());
  CHECK((polled[0].revents & POLLNVAL) == 0) << "the listener is closed: was it opened before a fork?";
  // Members come first: a rank that has ended and been started again must be forgotten before it registers again. The
  // order within each kind is that of `polled`. New connections are accepted last.
  size_t next = 1 + arrivals_.size() + dialled_.size();
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!members_[rank].connection.has_value()) continue;
    if (polled[next++].revents != 0) RETURN_IF_ERROR(OnMemberReady(rank));
  }
  next = 1;
  for (auto arrival = arrivals_.begin(); arrival != arrivals_.end();) {
    const bool is_ready = polled[next++].revents != 0;
    arrival = IsArrivalOver(*arrival, is_ready) ? arrivals_.erase(arrival) : std::next(arrival);
  }
  for (auto dialled = dialled_.begin(); dialled != dialled_.end();) {
    const bool is_ready = polled[next++].revents != 0;
    ASSIGN_OR_RETURN(const bool is_over, IsDialledOver(*dialled, is_ready));
    dialled = is_over ? dialled_.erase(dialled) : std::next(dialled);
  }
  if (polled[0].revents != 0) Accept();
  return absl::OkStatus();
}

absl::Status TcpFullMesh::OnMemberReady(int rank) {
  Member& member = members_[rank];
  member.connection->Flush();
  absl::Status status;
  while (status.ok()) {
    if (may_go_) return absl::OkStatus();  // rank 0 has then closed the connection
    absl::StatusOr<std::optional<TcpFrame>> frame = member.connection->Receive(kTcpTableBytesMax);
    if (!frame.ok()) {
      status = frame.status();
    } else if (!frame->has_value()) {
      return absl::OkStatus();
    } else {
      RETURN_IF_ERROR(OnFrame(rank, **frame));
    }
  }
  const absl::Status why = About(NameOf(rank), status);
  if (rank_ != 0 || phase_ != Phase::kRegister) return why;
  // Until the table is sent, no rank depends on the rank that failed. It may have been started with a wrong flag, and
  // may come back.
  last_refusal_ = std::string(why.message()).substr(0, kLogLineBytesMax);
  member = Member();
  return absl::OkStatus();
}

absl::Status TcpFullMesh::OnFrame(int rank, const TcpFrame& frame) {
  // Each frame comes once: a rank that repeats one for ever must not keep this one from its deadline.
  if (rank_ == 0 && frame.kind == TcpFrameKind::kReady && phase_ == Phase::kMesh && !members_[rank].is_ready) {
    members_[rank].is_ready = true;
    return absl::OkStatus();
  }
  if (rank_ != 0 && frame.kind == TcpFrameKind::kTable && phase_ == Phase::kRegister && table_.empty()) {
    std::vector<std::string> table = absl::StrSplit(frame.payload, '\n');
    // A table of another length goes on to the error below.
    if (std::ssize(table) == world_size_) {
      table_ = std::move(table);
      return absl::OkStatus();
    }
  }
  if (rank_ != 0 && frame.kind == TcpFrameKind::kGo && phase_ == Phase::kGo) {
    may_go_ = true;
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(NameOf(rank), " has sent frame ", static_cast<uint32_t>(frame.kind),
                                          " at a wrong time: start all ranks from one build"));
}

TcpChannel& TcpFullMesh::ChannelOf(int rank, Purpose purpose) {
  CHECK(purpose != Purpose::kRegister);
  return purpose == Purpose::kMessages ? links_[rank].messages : links_[rank].notices;
}

bool TcpFullMesh::IsMeshComplete() const {
  for (int rank = 0; rank < world_size_; ++rank) {
    const TcpTransport::Link& link = links_[rank];
    if (rank != rank_ && (link.messages.fd() < 0 || link.notices.fd() < 0)) return false;
  }
  return true;
}

TcpHello TcpFullMesh::MakeHello(Purpose purpose, int to_rank) const {
  return {.purpose = purpose,
          .rank = rank_,
          .to_rank = to_rank,
          .world_size = world_size_,
          .has_tls = options_.tls != nullptr,
          .run_id = options_.run_id,
          .address = listener_->address()};
}

std::string TcpFullMesh::NameOf(int rank) const {
  return absl::StrCat(ProcessName(rank, worker_count()), " (", rank == 0 ? options_.rendezvous : members_[rank].address,
                      ")");
}

std::vector<int> TcpFullMesh::RanksThatAre(absl::FunctionRef<bool(const Member&)> is_so) const {
  std::vector<int> ranks;
  for (int rank = 1; rank < world_size_; ++rank) {
    if (is_so(members_[rank])) ranks.push_back(rank);
  }
  return ranks;
}

// Completes the sentence "... within 60s". A stall's line has it alone.
std::string TcpFullMesh::DescribeMissing() const {
  if (rank_ == 0 && phase_ == Phase::kRegister) {
    const std::vector<int> missing = RanksThatAre([](const Member& one) { return !one.connection.has_value(); });
    return absl::StrCat(RanksText(missing, worker_count()), " of ", world_size_, missing.size() == 1 ? " has" : " have",
                        " not joined at ", options_.rendezvous);
  }
  if (rank_ != 0 && phase_ != Phase::kMesh) return absl::StrCat(NameOf(0), " did not say that all ranks have joined");
  std::vector<int> absent;
  for (int rank = 0; rank < world_size_; ++rank) {
    const bool is_here = links_[rank].messages.fd() >= 0 && links_[rank].notices.fd() >= 0;
    if (rank != rank_ && !is_here) absent.push_back(rank);
  }
  if (!absent.empty()) {
    return absl::StrCat(RanksText(absent, worker_count()), " joined, but did not connect with rank ", rank_,
                        DescribeRedials());
  }
  const std::vector<int> slow = RanksThatAre([](const Member& one) { return !one.is_ready; });
  return absl::StrCat(RanksText(slow, worker_count()), " joined, but did not connect with all other ranks");
}

}  // namespace starring
