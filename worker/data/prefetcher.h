// Runs fillers of numbered batches some steps ahead of their consumer.
//
// There are depth + 1 slots: one is the consumer's, `depth` are ready or being filled. Step s lives in slot
// (s - first_step) mod slot count. The fillers are an OpenMP team that lives as long as the prefetcher, each thread of
// which takes whole batches: a team that split every batch would fork and join more often than a batch of small images
// is worth, and libgomp spins while it waits. Here everybody waits on a condition variable, so idle fillers take no
// core from the trainer.
//
// Thread safety: Next belongs to one thread.
#ifndef STARRING_WORKER_DATA_PREFETCHER_H_
#define STARRING_WORKER_DATA_PREFETCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace starring {

class Prefetcher {
 public:
  struct Options {
    int depth = 0;         // 0: no thread but the caller's; Next fills
    int filler_count = 1;  // more than `depth` are of no use
    int64_t first_step = 0;
    int64_t end_step = 0;  // one past the last
    absl::Duration deadline = absl::Seconds(60);
    // Two callbacks for every step, the second behind the first, on one thread; never for a slot that the consumer
    // holds. `plan` is called in ascending order of steps and never by two threads at once; `fill` by up to
    // filler_count threads. After an error no step is begun.
    std::function<void(int slot, int64_t step)> plan;
    std::function<absl::Status(int slot, int64_t step)> fill;
  };

  // ResourceExhausted when the system gives no thread.
  static absl::StatusOr<std::unique_ptr<Prefetcher>> Create(Options options);

  // Waits for the batches being filled, not for more.
  ~Prefetcher();

  static int SlotCount(int depth) { return depth + 1; }

  // The slot of the next step; it is the caller's until the next call. Steps before one that failed are still handed
  // out; then, and from then on: its error, or OutOfRange behind the last step. DeadlineExceeded, naming the step, when
  // it is not ready in time; the next call waits for it again.
  absl::StatusOr<int> Next();

 private:
  explicit Prefetcher(Options options);
  absl::StatusOr<int> FillAndTake();
  void RunFillers();
  void RunFiller();
  bool IsFilled(int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int SlotOf(int64_t step) const;

  const Options options_;
  int64_t taken_end_;  // steps below were handed out; the consumer's thread only

  Mutex mutex_;
  ConditionVariable filled_;                      // a step was filled, or failed
  ConditionVariable released_;                    // a slot was given back, or begun_end_ is final
  int64_t begun_end_ ABSL_GUARDED_BY(mutex_);     // steps below are filled or being filled
  int64_t released_end_ ABSL_GUARDED_BY(mutex_);  // steps below were given back
  int64_t begin_limit_
      ABSL_GUARDED_BY(mutex_);  // no step from here on is begun: end_step, or lower after an error or a stop
  std::vector<int64_t> slot_step_ ABSL_GUARDED_BY(mutex_);  // the step that a slot holds, filled; -1 before the first
  int64_t failed_step_ ABSL_GUARDED_BY(mutex_);             // lowest that failed; end_step if none
  absl::Status error_ ABSL_GUARDED_BY(mutex_);              // of failed_step_

  std::thread first_filler_;  // leads the team; not joinable with depth 0
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_PREFETCHER_H_
