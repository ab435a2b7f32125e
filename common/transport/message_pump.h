// Drives a transport: hands each completion to its poster, owns the buffers of control messages, waits with a deadline,
// and exchanges notices. A *control message* carries anything but a step's gradients and parameters: agreements, sums,
// the end of the job. A *notice* is a control message for which no receive is posted: a rank gives up and says why, or
// calls the roll.
//
// Roll call. In a ring all ranks soon wait for a rank that waits itself, so a late message does not tell which rank
// caused the delay. A rank whose deadline expires therefore asks all peers how far they are. A rank that waits or has
// nothing to do answers at once; a rank that does not answer is gone; the rank that has made the fewest calls is
// behind.
//
// Verdict. A rank that gives up tells all others, which end too. Where links may be cut one by one, it may not reach
// one of them: that rank would only see the others leave. So each rank that receives the reason passes it on, in the
// words of its own error. With N ranks that is N * N notices, once.
//
// After a failure only Abort works; every other call returns the first failure.
//
// Thread safety: none; one thread at a time.
#ifndef STARRING_COMMON_TRANSPORT_MESSAGE_PUMP_H_
#define STARRING_COMMON_TRANSPORT_MESSAGE_PUMP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/peer_watch.h"
#include "common/transport/transport.h"
#include "common/watch/stall_report.h"

namespace starring {

// The purpose of a control message.
enum class ControlTag : int {
  kNotice = Transport::kNoticeTag,
  kAgreementSize,
  kAgreement,
  kVerdictSize,
  kVerdict,
  kBroadcast,
  kSum,
  kSumRest,
  kSumResult,
  kState,
  kSegmentTaken,
  kBarrier,
  kBarrierDone,
  kCudaAware,
  kCudaAwareData,
  kCheck,
  kShardJoin,
  kShardAgreement,
  kShardRequest,
  kShardAnswer,
  kCount,
};

class MessagePump final : private Transport::Poster {
 public:
  using Clock = std::chrono::steady_clock;
  using Token = uint64_t;

  static constexpr int kFirstDataTag = 32;
  static_assert(static_cast<int>(ControlTag::kCount) <= kFirstDataTag);

  // `transport` is destroyed before the pump, into whose buffers it may write until then.
  // The last `server_count` ranks of the world are servers.
  MessagePump(Transport* transport, StallOptions stall, int server_count = 0);

  int rank() const { return transport_.rank(); }
  int world_size() const { return transport_.world_size(); }
  int worker_count() const { return world_size() - server_count_; }

  // Control messages. Send and Receive use buffers that the pump owns, because after a failure the library may still
  // read and write them. Take returns what a Receive has brought; it is called once. REQUIRES: IsComplete(token).
  Token Send(int peer, ControlTag tag, std::span<const std::byte> data);
  Token Receive(int peer, ControlTag tag, int64_t bytes);
  std::vector<std::byte> Take(Token token);
  // The same without a copy: `data` belongs to the pump until IsComplete(token), after a failure until destruction.
  Token SendFrom(int peer, ControlTag tag, std::span<const std::byte> data);
  Token ReceiveInto(int peer, ControlTag tag, std::span<std::byte> data);
  [[nodiscard]] bool IsComplete(Token token) const { return !pending_.contains(token); }

  // One round: polls, hands completions to their posters, and looks for notices (kNowAndThen: in one of many rounds).
  // kNothing if no operation but notices has completed.
  enum class Progress { kNothing, kSome };
  enum class Listening { kNowAndThen, kAlways };
  absl::StatusOr<Progress> Pump(Listening listening = Listening::kNowAndThen);

  // Pumps until `done()`, and sleeps in Transport::Wait when nothing arrives for longer than a wake-up costs. A lock
  // that the caller holds stays locked. DeadlineExceeded, without a message, at the deadline: the caller knows for what
  // it waited. Time in which this process did not run does not count (common/base/running_clock.h). A stall is reported
  // as a wait for `what`; with an empty `what` none is reported. `sleep_max`: of one sleep, for a `done` that becomes
  // true without a message.
  absl::Status PumpUntil(absl::FunctionRef<bool()> done, Clock::time_point deadline, const std::string& what,
                         std::chrono::microseconds sleep_max = kSleepMax);
  // PeerWatch::Look is to be called this often. A message ends a sleep earlier.
  static constexpr std::chrono::milliseconds kSleepMax{20};

  // Counts a call that all ranks make in the same order. The roll call compares the counts.
  void CountCall() { watch_.CountCall(); }

  // PeerWatch::set_is_busy.
  void set_is_busy(std::function<bool()> is_busy) { watch_.set_is_busy(std::move(is_busy)); }

  // Calls the roll and describes the outcome for the message of an expired deadline: "rank 2 does not answer". Takes up
  // to PeerWatch::patience_for_others. The failure instead if another rank has given up first. `if_all_wait`: what to
  // say where all ranks answer and none is behind; empty: that it may be the network.
  absl::StatusOr<std::string> FindMissing(const std::string& if_all_wait = "");

  // Asks `peer` how far it is. The answer goes to StallOptions::on_heard.
  void AskProgress(int peer) { SendNotice(peer, NoticeKind::kRollCall, ""); }

  // OK, or the first failure, after which nothing works any more.
  const absl::Status& failure() const { return failure_; }

  // Gives up: `why` becomes the failure. All peers are told, unless a peer gave up first or the peers know already.
  // Waits up to two seconds for the notices, or for a verdict that this rank passes on, to leave.
  void Abort(const absl::Status& why);
  // All ranks have been told in another way why they give up.
  void PeersKnow() { peers_know_ = true; }

 private:
  absl::Status Fail(absl::Status status);
  absl::Status Listen();
  void SendNotice(int peer, NoticeKind kind, std::string_view text);
  void TellAll(NoticeKind kind, const absl::Status& why, int except_peer);
  void OnCompletion(uint64_t operation) override;
  Token BeginOperation();
  Transport::Token Name(Token token) { return {.poster = this, .operation = token}; }

  Transport& transport_;
  const int server_count_;
  absl::Status failure_;
  bool peers_know_ = false;

  std::vector<Transport::Token> completed_;  // of a poll; a member, so that polling allocates nothing
  Token next_token_ = 0;
  std::unordered_set<Token> pending_;                           // control operations in flight
  std::unordered_map<Token, std::vector<std::byte>> sent_;      // the buffers of Send
  std::unordered_map<Token, std::vector<std::byte>> received_;  // the buffers of Receive, until Take
  int rounds_until_listening_ = 0;

  std::unordered_set<Token> notices_;  // our own that are in flight
  std::unordered_set<Token> leaving_;  // those among them that say why this rank ends, until Abort waits for them
  PeerWatch watch_;
};

MessagePump::Clock::time_point DeadlineAfter(absl::Duration duration);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MESSAGE_PUMP_H_
