// The check of ranks that meet over TCP: they meet as in a job, by the same rendezvous and with the same secret, so
// that every rank has connected with every other one. Then each measures the connection to the next rank, one rank
// after the other, and rank 0 gathers what all have found.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "common/watch/stall_report.h"
#include "worker/check/topology_check.h"

namespace starring {
namespace {

using Clock = MessagePump::Clock;
using v1::LinkReport;
using v1::ProcessFacts;
using v1::ProcessReport;

constexpr int kPings = 10;
// Payloads of one batch.
constexpr int64_t kPayloadsMax = kCheckBandwidthBytesMax / kCheckPayloadBytesMax;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t WallClockUs() { return absl::GetCurrentTimeNanos() / 1000; }

// This rank's messages to and from another one, which does the opposite. Every wait ends at `end`.
class Conversation {
 public:
  Conversation(MessagePump* pump, int peer, Clock::time_point end) : pump_(*pump), peer_(peer), end_(end) {}

  absl::Status Tell(int64_t word) {
    return Wait({pump_.Send(peer_, ControlTag::kCheck, std::as_bytes(std::span(&word, 1)))});
  }

  absl::StatusOr<int64_t> Hear() {
    int64_t word = 0;
    const MessagePump::Token token = pump_.Receive(peer_, ControlTag::kCheck, sizeof(word));
    RETURN_IF_ERROR(Wait({token}));
    const std::vector<std::byte> bytes = pump_.Take(token);
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(&word, 1)).begin());
    return word;
  }

  absl::Status SendPayloads(int64_t count) {
    const std::vector<std::byte> payload(kCheckPayloadBytesMax);
    std::vector<MessagePump::Token> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(pump_.Send(peer_, ControlTag::kCheck, payload));
    return Wait(tokens);
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
    if (!absl::IsDeadlineExceeded(status) || !status.message().empty()) return status;
    return absl::DeadlineExceededError(absl::StrCat("rank ", peer_, " did not answer to rank ", pump_.rank(),
                                                    " within the ", absl::FormatDuration(kTestsDeadline),
                                                    " of the check"));
  }

  MessagePump& pump_;
  const int peer_;
  const Clock::time_point end_;
};

// Bytes per second of `count` payloads.
absl::StatusOr<double> SendBatch(Conversation& peer, int64_t count) {
  RETURN_IF_ERROR(peer.Tell(count));
  RETURN_IF_ERROR(peer.Hear().status());  // its receives are posted
  const Clock::time_point start = Clock::now();
  RETURN_IF_ERROR(peer.SendPayloads(count));
  RETURN_IF_ERROR(peer.Hear().status());  // it has all
  return static_cast<double>(count * kCheckPayloadBytesMax) / SecondsSince(start);
}

// The round trip to `to` and, if `seconds` is not 0, the bandwidth, measured for about this time.
absl::StatusOr<LinkReport> MeasureLink(Conversation& peer, int to, double seconds) {
  LinkReport link;
  link.set_means(LinkReport::TCP);
  link.set_peer_role(ProcessFacts::WORKER);
  link.set_peer(to);
  for (int ping = 0; ping < kPings; ++ping) {
    const Clock::time_point start = Clock::now();
    RETURN_IF_ERROR(peer.Tell(ping));
    ASSIGN_OR_RETURN(const int64_t clock_us, peer.Hear());
    const double round_trip_us = SecondsSince(start) * 1e6;
    if (ping > 0 && round_trip_us >= link.round_trip_us()) continue;
    link.set_round_trip_us(round_trip_us);
    // The peer read its clock about half a round trip ago.
    link.set_clock_ahead_s((static_cast<double>(clock_us - WallClockUs()) + round_trip_us / 2) / 1e6);
  }
  if (seconds > 0) {
    // The first payload says how many fill the time.
    ASSIGN_OR_RETURN(const double first, SendBatch(peer, 1));
    const double fit = seconds * first / static_cast<double>(kCheckPayloadBytesMax);
    const int64_t count = fit < 1 ? 1 : fit < kPayloadsMax ? static_cast<int64_t>(fit) : kPayloadsMax;
    ASSIGN_OR_RETURN(const double rate, SendBatch(peer, count));
    link.set_bytes_per_second(rate);
  }
  RETURN_IF_ERROR(peer.Tell(0));
  return link;
}

// The other end of MeasureLink.
absl::Status AnswerLink(Conversation& peer) {
  for (int ping = 0; ping < kPings; ++ping) {
    RETURN_IF_ERROR(peer.Hear().status());
    RETURN_IF_ERROR(peer.Tell(WallClockUs()));
  }
  while (true) {
    ASSIGN_OR_RETURN(const int64_t count, peer.Hear());
    if (count == 0) return absl::OkStatus();
    if (count < 0 || count > kPayloadsMax) return absl::InternalError(absl::StrCat("a batch of ", count, " payloads"));
    RETURN_IF_ERROR(peer.TakePayloads(count));
  }
}

class TcpChecker {
 public:
  TcpChecker(const CheckParts& parts, ProcessReport report)
      : parts_(parts),
        rank_(parts.options->rank),
        world_size_(parts.options->world_size),
        report_(std::move(report)),
        findings_(EmptyFindings(parts, CheckFindings::Topology::kMesh)) {}

  CheckOutcome Run() {
    if (world_size_ == 1) return ConcludeAlone(parts_, std::move(findings_), report_);
    const absl::StatusOr<int> exit_code = MeetAndTest();
    if (exit_code.ok()) return {.exit_code = *exit_code};
    parts_.print(absl::StrCat("not ready: ", std::string(exit_code.status().message()), "\n"));
    const bool is_missing = absl::IsUnavailable(exit_code.status()) || absl::IsDeadlineExceeded(exit_code.status());
    return {.exit_code = is_missing ? kExitPeerMissing : kExitRefused};
  }

 private:
  absl::StatusOr<int> MeetAndTest() {
    TcpRendezvousOptions rendezvous = std::move(*parts_.rendezvous);
    rendezvous.join_deadline = findings_.gather_deadline;
    ASSIGN_OR_RETURN(std::unique_ptr<Transport> connected, ConnectFullMesh(std::move(rendezvous)));
    MessagePump pump(connected.get(), StallOptions());
    const std::unique_ptr<Transport> transport = std::move(connected);  // ends before the pump
    RETURN_IF_ERROR(TestLinks(pump));
    const CollectiveOptions options = {.what = "the check", .deadline = kTestsDeadline};
    ASSIGN_OR_RETURN(const std::vector<std::string> reports,
                     GatherTextToRoot(pump, report_.SerializeAsString(), options));
    int exit_code = kExitOk;
    if (rank_ == 0) {
      ASSIGN_OR_RETURN(exit_code, Judge(reports));
    }
    RETURN_IF_ERROR(
        SendFromRoot(pump, ControlTag::kVerdict, std::as_writable_bytes(std::span(&exit_code, 1)), options));
    return exit_code;
  }

  // A rank begins when the rank before it has ended, because tests that share a switch or a host would slow each other
  // down.
  absl::Status TestLinks(MessagePump& pump) {
    findings_.bandwidth = PlanBandwidth(1, world_size_);
    const Clock::time_point end = DeadlineAfter(kTestsDeadline);
    const int next = (rank_ + 1) % world_size_;
    Conversation to_last(&pump, (rank_ + world_size_ - 1) % world_size_, end);
    Conversation to_next(&pump, next, end);
    if (rank_ > 0) RETURN_IF_ERROR(AnswerLink(to_last));
    const bool tests_bandwidth = rank_ % findings_.bandwidth.rank_stride == 0;
    ASSIGN_OR_RETURN(*report_.add_links(),
                     MeasureLink(to_next, next, tests_bandwidth ? findings_.bandwidth.seconds : 0));
    if (rank_ == 0) RETURN_IF_ERROR(AnswerLink(to_last));
    return absl::OkStatus();
  }

  absl::StatusOr<int> Judge(const std::vector<std::string>& reports) {
    for (const std::string& bytes : reports) {
      if (!findings_.reports.emplace_back().ParseFromString(bytes)) {
        return absl::InternalError(
            absl::StrCat("what rank ", findings_.reports.size() - 1, " has sent is no report: start one build"));
      }
    }
    // A rank does not know on which host the next one is.
    for (ProcessReport& report : findings_.reports) {
      for (LinkReport& link : *report.mutable_links()) {
        if (0 <= link.peer() && link.peer() < world_size_) {
          link.set_address(findings_.reports[link.peer()].facts().host());
        }
      }
    }
    const CheckVerdict verdict = JudgeCheck(findings_);
    parts_.print(absl::StrCat(CheckTable(findings_), CheckEnd(findings_, verdict)));
    return verdict.exit_code;
  }

  const CheckParts& parts_;
  const int rank_;
  const int world_size_;
  ProcessReport report_;
  CheckFindings findings_;
};

}  // namespace

CheckOutcome CheckMesh(const CheckParts& parts, ProcessReport report) {
  return TcpChecker(parts, std::move(report)).Run();
}

}  // namespace starring
