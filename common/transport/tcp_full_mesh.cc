#include "common/transport/tcp_full_mesh.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/host/address.h"
#include "common/host/dial.h"
#include "common/roll_call.h"
#include "common/status.h"
#include "common/steady_time.h"

namespace starring {
namespace {

using Purpose = TcpHello::Purpose;

constexpr std::chrono::milliseconds kRedial{kTcpRedialMs};
// How long a rank that cannot connect with another looks for rank 0's verdict: a round trip. The others are told that
// much later.
constexpr int kCauseMs = 100;

// `why`, whose text completes a sentence, with its subject.
absl::Status About(const std::string& name, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(name, " ", std::string(why.message())));
}

// "rank 2", "ranks 2, 3 and 1021 more"; with servers "rank 2, server 0"
std::string RanksText(const std::vector<int>& ranks, int worker_count) {
  if (ranks.back() >= worker_count) return NameProcesses(ranks, worker_count);
  const size_t named = std::min<size_t>(ranks.size(), kRanksNamedMax);
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<int64_t>(named), ", "));
  if (ranks.size() > named) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

absl::Duration Until(std::chrono::steady_clock::time_point end) {
  return absl::FromChrono(end - std::chrono::steady_clock::now());
}

// At least 1: with 0 the last part of a millisecond would be spent in a busy loop.
int PollMs(absl::Duration duration) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration) + 1, 1, 1000));
}

pollfd Polled(TcpFrameConnection& connection) {
  const auto events = static_cast<short>(POLLIN | (connection.has_unsent() ? POLLOUT : 0));
  return {.fd = connection.fd(), .events = events, .revents = 0};
}

}  // namespace

TcpFullMesh::TcpFullMesh(TcpRendezvousOptions options)
    : rank_(options.rank),
      world_size_(options.world_size),
      options_(std::move(options)),
      report_(options_.say),
      listener_(std::move(options_.listener)),
      members_(world_size_),
      links_(world_size_) {
  absl::Duration patience = BoundedDeadline(options_.join_deadline);
  if (rank_ != 0) patience += absl::Milliseconds(kVerdictGraceMs);
  deadline_ = begin_ + absl::ToChronoNanoseconds(patience);
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
  if (!listener_.has_value()) {
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
  // A rank that is gone now is found by the transport.
  for (int rank = 1; rank < world_size_; ++rank) members_[rank].connection->Send(TcpFrameKind::kGo, "");
  return absl::OkStatus();
}

absl::Status TcpFullMesh::Follow() {
  RETURN_IF_ERROR(Register());
  RETURN_IF_ERROR(RunUntil([&] { return !table_.empty(); }));
  phase_ = Phase::kMesh;
  if (const absl::Status failed = DialLowerRanks(); !failed.ok()) return CauseOf(failed);
  RETURN_IF_ERROR(RunUntil([&] { return IsMeshComplete(); }));
  phase_ = Phase::kGo;
  members_[0].connection->Send(TcpFrameKind::kReady, "");
  return RunUntil([&] { return may_go_; });
}

// Rank 0 may start later than this rank, so a refused connection is no error until the deadline.
absl::Status TcpFullMesh::Register() {
  std::string last;
  while (Clock::now() < deadline_) {
    // A dial ends for the report, which would otherwise come late if packets to rank 0 are dropped.
    const absl::Duration until_report = std::max(Until(report_at_), absl::FromChrono(kRedial));
    const absl::Duration patience = std::min({Until(deadline_), until_report, absl::Milliseconds(kTcpDialMs)});
    DialResult dialled = std::move(DialAll({&options_.rendezvous, 1}, patience).front());
    if (dialled.socket.fd() >= 0) {
      const absl::Status status = RegisterOnce(std::move(dialled.socket), dialled.local_address);
      // A refusal is final. A connection that ends without one may have reached the job that ran here before.
      if (!absl::IsUnavailable(status)) return status;
      last = std::string(status.message());
    } else {
      last = absl::StrCat(NameOf(0), " cannot be reached: ", dialled.error);
    }
    ReportStall([&] { return last; });
    std::this_thread::sleep_for(kRedial);
  }
  return absl::DeadlineExceededError(absl::StrCat("rank ", rank_,
                                                  " did not find rank 0 at --rendezvous=", options_.rendezvous,
                                                  " within ", absl::FormatDuration(options_.join_deadline), ": ", last,
                                                  ": is rank 0 running there, and may this host reach it?"));
}

absl::Status TcpFullMesh::RegisterOnce(Socket socket, const std::string& local_address) {
  const bool is_six = local_address.find(':') != std::string::npos;
  ASSIGN_OR_RETURN(listener_, TcpListener::Listen(is_six ? absl::StrCat("[", local_address, "]:0")
                                                         : absl::StrCat(local_address, ":0")));
  TcpDialer dialer(std::move(socket), MakeHello(Purpose::kRegister, 0), options_.token);
  while (true) {
    const absl::StatusOr<bool> welcome = dialer.Advance();
    if (!welcome.ok()) return About(NameOf(0), welcome.status());
    if (*welcome) break;
    if (Clock::now() >= deadline_) return absl::DeadlineExceededError(absl::StrCat(NameOf(0), " does not answer"));
    ReportStall([&] { return absl::StrCat(NameOf(0), " does not answer"); });
    pollfd polled = Polled(dialer.connection());
    poll(&polled, 1, PollMs(Until(std::min(deadline_, report_at_))));
  }
  members_[0] = {.connection = std::move(dialer.connection()), .address = options_.rendezvous};
  return absl::OkStatus();
}

absl::Status TcpFullMesh::DialLowerRanks() {
  constexpr Purpose kPurposes[] = {Purpose::kMessages, Purpose::kNotices};
  std::vector<std::string> addresses;
  for (int rank = 0; rank < rank_; ++rank) addresses.insert(addresses.end(), std::size(kPurposes), table_[rank]);
  std::vector<DialResult> results = DialAll(addresses, std::min(Until(deadline_), absl::Milliseconds(kTcpDialMs)));
  for (size_t i = 0; i < results.size(); ++i) {
    const int to_rank = static_cast<int>(i / std::size(kPurposes));
    const Purpose purpose = kPurposes[i % std::size(kPurposes)];
    if (results[i].socket.fd() < 0) {
      return absl::UnavailableError(absl::StrCat(
          ProcessName(rank_, worker_count()), " cannot connect with ", ProcessName(to_rank, worker_count()), " at ",
          addresses[i], ": ", results[i].error, ": every rank must be able to reach every other one, at any port"));
    }
    dialled_.push_back({.dialer = TcpDialer(std::move(results[i].socket), MakeHello(purpose, to_rank), options_.token),
                        .to_rank = to_rank,
                        .purpose = purpose,
                        .address = addresses[i]});
  }
  return absl::OkStatus();
}

// Rank 0 may have ended the meeting because of another rank, and closed its listener and connections. Its verdict was
// sent before, and says more than that this rank cannot connect.
absl::Status TcpFullMesh::CauseOf(const absl::Status& failed) {
  pollfd polled = Polled(*members_[0].connection);
  if (poll(&polled, 1, kCauseMs) <= 0) return failed;
  const absl::Status verdict = OnMemberReady(0);
  return verdict.ok() ? failed : verdict;
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

// Once it is time, and once only: says whom this rank waits for.
void TcpFullMesh::ReportStall(absl::FunctionRef<std::string()> describe) {
  const Clock::time_point now = Clock::now();
  if (now < report_at_) return;
  report_at_ = Clock::time_point::max();
  report_.Open(0, begin_, StallSentence(now - begin_, "joining", describe()));
}

int TcpFullMesh::PollTimeoutMs() const {
  Clock::time_point end = std::min(deadline_, report_at_);
  if (!arrivals_.empty()) end = std::min(end, arrivals_.front().deadline);
  return PollMs(Until(end));
}

// Waits for an event, and then goes on with every connection that has one.
absl::Status TcpFullMesh::Round() {
  std::vector<pollfd> polled = {{.fd = listener_->fd(), .events = POLLIN, .revents = 0}};
  for (Arrival& arrival : arrivals_) polled.push_back(Polled(arrival.door.connection()));
  for (Dialled& dialled : dialled_) polled.push_back(Polled(dialled.dialer.connection()));
  for (Member& member : members_) {
    if (member.connection.has_value()) polled.push_back(Polled(*member.connection));
  }
  poll(polled.data(), polled.size(), PollTimeoutMs());
  // Members come first: a rank that has ended and been started again must be forgotten before it registers again. The
  // order within each kind is that of `polled`. What is accepted now comes last.
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

absl::StatusOr<bool> TcpFullMesh::IsDialledOver(Dialled& dialled, bool is_ready) {
  if (!is_ready) return false;
  const absl::StatusOr<bool> is_welcome = dialled.dialer.Advance();
  if (!is_welcome.ok()) {
    return CauseOf(About(absl::StrCat(ProcessName(dialled.to_rank, worker_count()), " (", dialled.address, ")"),
                         is_welcome.status()));
  }
  if (!*is_welcome) return false;
  SocketOf(dialled.to_rank, dialled.purpose) = dialled.dialer.connection().TakeSocket();
  links_[dialled.to_rank].address = dialled.address;
  return true;
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
  // Until the table is sent no rank counts on this one: it may have been started with a wrong flag, and come back.
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

Socket& TcpFullMesh::SocketOf(int rank, Purpose purpose) {
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
  if (!absent.empty())
    return absl::StrCat(RanksText(absent, worker_count()), " joined, but did not connect with rank ", rank_);
  const std::vector<int> slow = RanksThatAre([](const Member& one) { return !one.is_ready; });
  return absl::StrCat(RanksText(slow, worker_count()), " joined, but did not connect with all other ranks");
}

}  // namespace starring
