// A reduce machine carries out a rank's reductions (reduction.h), driven by a transport's completions. There are two:
// the star (reduce_star.h) and the ring (reduce_ring.h).
//
// Heads. When a rank begins a reduction it sends the head to its right neighbour, and compares its own with the one
// that comes from the left; if ranks disagree, at least one of them finds it. With servers all ranks send theirs to all
// servers, which compare (sum_server.h). Messages with elements have tags that follow from the head. So elements of
// reductions on which ranks disagree are never added; they stay with the transport until the difference is found.
//
// A machine never waits and starts no thread. Thread safety: none; one thread at a time.
#ifndef STARRING_COMMON_REDUCE_ARRAYS_REDUCE_MACHINE_H_
#define STARRING_COMMON_REDUCE_ARRAYS_REDUCE_MACHINE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/reduce/arrays/reduction.h"
#include "common/transport/message_pump.h"
#include "common/transport/transport.h"

namespace starring {

class ReduceMachine : public Transport::Poster {
 public:
  using Clock = std::chrono::steady_clock;

  // Both are used from here on; all other control messages have tags below.
  static constexpr int kHeadTag = MessagePump::kFirstDataTag;
  static constexpr int kFirstElementTag = kHeadTag + 1;

  virtual ~ReduceMachine() = default;

  // Begins a reduction: all ranks begin theirs in the order of their numbers. Its data belong to the machine until
  // TakeCompleted returns the number. With servers, the last head may be a kEnd.
  void Begin(const Reduction& reduction);

  bool IsIdle() const { return in_flight_.empty(); }
  // The head of the reduction with the lowest number. REQUIRES: !IsIdle().
  const ReductionHead& Oldest() const { return in_flight_.begin()->second.reduction.head; }

  // The numbers of the reductions that are complete, each of them once.
  bool has_completed() const { return !completed_.empty(); }
  std::vector<int64_t> TakeCompleted() { return std::exchange(completed_, {}); }

  // InvalidArgument once ranks disagree about a reduction; another error if this rank cannot go on.
  const absl::Status& status() const { return status_; }
  // When a reduction began while none was in flight, or an operation completed. REQUIRES: !IsIdle().
  Clock::time_point last_progress() const { return last_progress_; }

  // Returns when nothing touches the data of reductions any more, or after some seconds. Afterwards only the destructor
  // is called.
  virtual void Stop() {}
  // How many reductions have this rank's own contribution. Those of arrays in host memory have it when they begin.
  virtual int64_t contributed_count() const { return begun_count_; }
  // Whether the oldest reduction waits for this rank's own contribution.
  virtual bool IsComputing() const { return false; }
  // Why this rank itself holds up its reductions; empty: as far as it knows, it waits for others.
  virtual std::string OwnDelay() const { return ""; }

  void OnCompletion(uint64_t operation) final;

 protected:
  // Posts the reduction's first operations.
  virtual void Start(const Reduction& reduction) = 0;
  // An operation that the machine has posted is complete. Numbers of operations are below 2^62.
  virtual void Advance(uint64_t operation) = 0;

  // `transport` outlives the machine. The last `server_count` ranks of its world are servers.
  explicit ReduceMachine(Transport* transport, int server_count = 0);

  // REQUIRES: the reduction is in flight.
  const Reduction& InFlightOf(int64_t number) const { return in_flight_.at(number).reduction; }
  // The reduction is complete after that many further calls of Complete.
  void Expect(int64_t number, int64_t calls);
  void Complete(int64_t number);
  void NoteProgress() { last_progress_ = Clock::now(); }
  // Becomes status(), unless that is an error already.
  void Fail(const absl::Status& why) { status_.Update(why); }

  Transport& transport() const { return transport_; }
  int rank() const { return transport_.rank(); }
  int server_count() const { return server_count_; }
  int worker_count() const { return transport_.world_size() - server_count_; }

 private:
  struct InFlight {
    Reduction reduction;
    ReductionHead left;   // of the left neighbour
    int64_t missing = 0;  // calls of Complete
  };

  void SendHeads(InFlight& in_flight);

  Transport& transport_;
  const int server_count_;
  std::map<int64_t, InFlight> in_flight_;  // by number
  std::vector<int64_t> completed_;
  int64_t begun_count_ = 0;
  absl::Status status_;
  Clock::time_point last_progress_;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_ARRAYS_REDUCE_MACHINE_H_
