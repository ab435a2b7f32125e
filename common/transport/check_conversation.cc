#include "common/transport/check_conversation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/host/process_facts.h"
#include "common/network/round_trip.h"
#include "common/transport/collectives.h"
#include "common/transport/shard_wire.h"
#include "common/watch/roll_call.h"

namespace starring {
namespace {

using Clock = MessagePump::Clock;
using v1::LinkReport;
using v1::ProcessFacts;
using v1::ProcessReport;

// A process that tests no bandwidth is one of many.
constexpr int kFewPings = 3;
// The words of a measurement: a ping, a batch of so many payloads, or the end.
constexpr int64_t kPing = -1;
constexpr int64_t kEnd = 0;
constexpr int64_t kPayloadsMax = kCheckBandwidthBytesMax / kCheckPayloadBytesMax;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// This process's messages to and from another one, which does the opposite.
class Conversation {
 public:
  // Every wait ends at `end`.
  Conversation(MessagePump& pump, int peer, Clock::time_point end) : pump_(pump), peer_(peer), end_(end) {}

  absl::Status Tell(int64_t word) {
    return Wait({pump_.Send(peer_, ControlTag::kCheck, std::as_bytes(std::span(&word, 1)))});
  }

  absl::StatusOr<int64_t> Hear() {
    int64_t word = 0;
    const MessagePump::Token token = pump_.Receive(peer_, ControlTag::kCheck, sizeof(word));
    RETURN_IF_ERROR(Wait({token}));
    std::ranges::copy(pump_.Take(token), std::as_writable_bytes(std::span(&word, 1)).begin());
    return word;
  }

  // Bytes per second of `count` payloads.
  absl::StatusOr<double> SendPayloads(int64_t count) {
    RETURN_IF_ERROR(Tell(count));
    RETURN_IF_ERROR(Hear().status());  // its receives are posted
    const std::vector<std::byte> payload(kCheckPayloadBytesMax);
    const Clock::time_point start = Clock::now();
    std::vector<MessagePump::Token> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(pump_.Send(peer_, ControlTag::kCheck, payload));
    RETURN_IF_ERROR(Wait(tokens));
    RETURN_IF_ERROR(Hear().status());  // it has all
    return static_cast<double>(count * kCheckPayloadBytesMax) / SecondsSince(start);
  }

  // Tells the peer to begin when all receives are posted: a transport keeps only few messages without one.
  absl::Status TakePayloads(int64_t count) {
    std::vector<MessagePump::Token> tokens;
    for (int64_t i = 0; i < count; ++i) {
      tokens.push_back(pump_.Receive(peer_, ControlTag::kCheck, kCheckPayloadBytesMax));
    }
    RETURN_IF_ERROR(Tell(0));
    RETURN_IF_ERROR(Wait(tokens));
    for (const MessagePump::Token token : tokens) static_cast<void>(pump_.Take(token));
    return Tell(0);
  }

 private:
  absl::Status Wait(const std::vector<MessagePump::Token>& tokens) {
    const auto is_complete = [this](MessagePump::Token token) { return pump_.IsComplete(token); };
    const absl::Status status =
        pump_.PumpUntil([&] { return std::all_of(tokens.begin(), tokens.end(), is_complete); }, end_, "");
    // Without a message it is this wait that was too long.
    if (!absl::IsDeadlineExceeded(status) || !status.message().empty()) return status;
    return absl::DeadlineExceededError(absl::StrCat(ProcessName(peer_, pump_.worker_count()), " did not answer to ",
                                                    ProcessName(pump_.rank(), pump_.worker_count()), " in time"));
  }

  MessagePump& pump_;
  const int peer_;
  const Clock::time_point end_;
};

absl::StatusOr<double> MeasureBandwidth(Conversation& peer, double seconds) {
  // The first payload says how many fill the time.
  ASSIGN_OR_RETURN(const double first, peer.SendPayloads(1));
  const double fit = seconds * first / static_cast<double>(kCheckPayloadBytesMax);
  const int64_t count = fit < 1 ? 1 : fit < kPayloadsMax ? static_cast<int64_t>(fit) : kPayloadsMax;
  return peer.SendPayloads(count);
}

absl::Status MeasureLink(Conversation peer, double seconds, LinkReport& link) {
  const auto ping = [&peer]() -> absl::StatusOr<int64_t> {
    RETURN_IF_ERROR(peer.Tell(kPing));
    return peer.Hear();
  };
  absl::Status status = MeasureRoundTrip(seconds > 0 ? kPings : kFewPings, ping, link);
  if (status.ok() && seconds > 0) status = SetBandwidth(MeasureBandwidth(peer, seconds), link);
  if (status.ok()) status = peer.Tell(kEnd);
  if (!status.ok()) link.set_error(std::string(status.message()));
  return status;
}

// The other end of MeasureLink.
absl::Status AnswerLink(Conversation peer) {
  while (true) {
    ASSIGN_OR_RETURN(const int64_t word, peer.Hear());
    if (word == kEnd) return absl::OkStatus();
    // The number comes from another process, and decides how much memory is taken.
    if (word < kPing || word > kPayloadsMax) return absl::InternalError(absl::StrCat("a batch of ", word, " payloads"));
    RETURN_IF_ERROR(word == kPing ? peer.Tell(WallClockMicroseconds()) : peer.TakePayloads(word));
  }
}

CollectiveOptions ForAll() { return {.what = "the check", .deadline = kTestsDeadline, .with_servers = true}; }

}  // namespace

absl::Status TestLinks(MessagePump& pump, const LinkTests& tests, ProcessReport& report) {
  const Clock::time_point end = DeadlineAfter(tests.deadline);
  const int workers = pump.worker_count();
  const int rank = pump.rank();
  const auto answer = [&](int peer) { return AnswerLink(Conversation(pump, peer, end)); };
  const auto measure = [&](int peer) {
    LinkReport& link = peer < workers ? AddLink(tests.means, ProcessFacts::WORKER, peer, report)
                                      : AddLink(tests.means, ProcessFacts::SERVER, peer - workers, report);
    return MeasureLink(Conversation(pump, peer, std::min(end, DeadlineAfter(tests.own_deadline))),
                       tests.bandwidth_seconds, link);
  };
  // One pair measures at a time, or links that share a wire would seem slow: each worker begins when the one before it
  // has finished. With servers a worker measures its links to them, otherwise the one to the next worker.
  const int servers = pump.world_size() - workers;
  for (int turn = 0; turn < workers; ++turn) {
    const int next = (turn + 1) % workers;
    const int first = servers > 0 ? workers : next;
    for (int peer = first; peer < first + std::max(1, servers); ++peer) {
      if (rank == turn) RETURN_IF_ERROR(measure(peer));
      if (rank == peer) RETURN_IF_ERROR(answer(turn));
    }
    // Without servers the next worker has just answered.
    if (servers == 0 || next == 0) continue;
    if (rank == turn) RETURN_IF_ERROR(Conversation(pump, next, end).Tell(0));
    if (rank == next) RETURN_IF_ERROR(Conversation(pump, turn, end).Hear().status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ProcessReport>> GatherReports(MessagePump& pump, const ProcessReport& own) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTextToRoot(pump, own.SerializeAsString(), ForAll()));
  std::vector<ProcessReport> reports;
  for (const std::string& text : texts) {
    if (reports.emplace_back().ParseFromString(text)) continue;
    return absl::InternalError(absl::StrCat(ProcessName(static_cast<int>(reports.size()) - 1, pump.worker_count()),
                                            " has sent no report of a check: start one build everywhere"));
  }
  return reports;
}

absl::Status TellVerdict(MessagePump& pump, int& exit_code) {
  return SendFromRoot(pump, ControlTag::kVerdict, std::as_writable_bytes(std::span(&exit_code, 1)), ForAll());
}

absl::Status InviteServers(MessagePump& pump) {
  std::vector<MessagePump::Token> tokens;
  for (int server = pump.worker_count(); server < pump.world_size(); ++server) {
    const ShardJoin join = {
        .shard = server - pump.worker_count(), .shard_count = pump.world_size() - pump.worker_count(), .checks = 1};
    tokens.push_back(pump.Send(server, ControlTag::kShardJoin, std::as_bytes(std::span(&join, 1))));
  }
  return AwaitAll(pump, tokens, ForAll());
}

absl::Status AnswerCheck(MessagePump& pump, ProcessReport own) {
  RETURN_IF_ERROR(TestLinks(pump, {}, own));
  RETURN_IF_ERROR(GatherReports(pump, own).status());
  int exit_code = 0;
  return TellVerdict(pump, exit_code);
}

}  // namespace starring
