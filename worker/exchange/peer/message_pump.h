// Drives a transport: hands completions to the bucket machine, keeps the buffers of the few control messages beside it,
// waits with a deadline, and exchanges notices. A *control message* is anything that is no gradient and no parameter of
// a step: agreements, sums, the end. A *notice* is a control message that nobody waits for: a rank gives up and says
// why, or calls the roll.
//
// Roll call. In a ring, everybody soon waits for somebody who waits; who is late himself cannot tell whose fault it is.
// So a rank whose deadline expires asks all peers how far they are. Who waits, or has nothing to do, answers at once;
// who does not answer is gone, and whoever has made the fewest calls is behind.
//
// After a failure nothing works but Abort; every call returns the first one.
//
// Thread safety: none; one thread at a time.
#ifndef STARRING_WORKER_EXCHANGE_PEER_MESSAGE_PUMP_H_
#define STARRING_WORKER_EXCHANGE_PEER_MESSAGE_PUMP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/exchange/peer/peer_watch.h"
#include "worker/exchange/peer/transport.h"
#include "worker/exchange/stall_report.h"

namespace starring {

// What a control message is for.
enum class ControlTag : int {
  kNotice,
  kAgreementSize,
  kAgreement,
  kVerdictSize,
  kVerdict,
  kBroadcast,
  kSum,
  kSumRest,
  kSumResult,
  kState,
  kBarrier,
  kBarrierDone,
  kCudaAware,
  kCudaAwareData,
  kCount,
};

class MessagePump final : private Transport::Poster {
 public:
  using Clock = std::chrono::steady_clock;
  using Token = uint64_t;

  static constexpr int kFirstDataTag = 16;
  static_assert(static_cast<int>(ControlTag::kCount) <= kFirstDataTag);

  // `transport` is destroyed before the pump, into whose buffers it may write until then.
  MessagePump(Transport* transport, StallOptions stall);

  int rank() const { return transport_.rank(); }
  int world_size() const { return transport_.world_size(); }

  // Control messages. Send and Receive use buffers of the pump's own: after a failure, the library may still read and
  // write what has been posted. Take hands out what a Receive brought. REQUIRES: IsComplete(token); once.
  Token Send(int peer, ControlTag tag, std::span<const std::byte> data);
  Token Receive(int peer, ControlTag tag, int64_t bytes);
  std::vector<std::byte> Take(Token token);
  // The same for much data: `data` belongs to the pump until IsComplete, after a failure until it is destroyed.
  Token SendFrom(int peer, ControlTag tag, std::span<const std::byte> data);
  Token ReceiveInto(int peer, ControlTag tag, std::span<std::byte> data);
  bool IsComplete(Token token) const { return !pending_.contains(token); }

  // One round: polls, dispatches, and looks for notices (kNowAndThen: in one of many rounds). `kNothing` when no
  // operation completed.
  enum class Progress { kNothing, kSome };
  enum class Listening { kNowAndThen, kAlways };
  absl::StatusOr<Progress> Pump(Listening listening = Listening::kNowAndThen);

  // Pumps until `done`. DeadlineExceeded (no message; the caller knows what is missing) when it takes longer. A stall
  // is reported as a wait for `what`, unless that is empty.
  absl::Status PumpUntil(absl::FunctionRef<bool()> done, Clock::time_point deadline, const std::string& what);

  // One more call of the exchange that all ranks make in the same order; the roll call compares these counts.
  void CountCall() { watch_.CountCall(); }

  // Calls the roll and says what came out: "rank 2 does not answer". For the message of an expired deadline; takes up
  // to PeerWatch::patience. The failure instead, if somebody else was first to give up.
  absl::StatusOr<std::string> FindMissing();

  // OK, or why nothing works any more.
  const absl::Status& failure() const { return failure_; }

  // Gives up: remembers `why` and tells all peers, unless they know. Waits a moment for the notices to leave.
  void Abort(const absl::Status& why);

 private:
  absl::Status Fail(absl::Status status);
  absl::Status Listen();
  void SendNotice(int peer, NoticeKind kind, std::string_view text);
  void OnCompletion(uint64_t operation) override;
  Token BeginOperation();
  Transport::Token Name(Token token) { return {.poster = this, .operation = token}; }

  Transport& transport_;
  absl::Status failure_;
  bool peers_know_ = false;

  std::vector<Transport::Token> completed_;  // of a poll; a member, so that polling allocates nothing
  Token next_token_ = 0;
  std::unordered_set<Token> pending_;                           // control operations in flight
  std::unordered_map<Token, std::vector<std::byte>> sent_;      // the buffers of Send
  std::unordered_map<Token, std::vector<std::byte>> received_;  // of Receive, until Take
  int rounds_until_listening_ = 0;

  std::unordered_set<Token> notices_;  // in flight: their completion is no progress
  PeerWatch watch_;
};

MessagePump::Clock::time_point DeadlineAfter(absl::Duration duration);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_MESSAGE_PUMP_H_
