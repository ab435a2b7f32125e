// Fills numbered batches some steps before their consumer asks for them.
//
// There are depth + 1 slots: one belongs to the consumer, the other `depth` are filled or being filled. Step s is in
// slot (s - first_step) mod slot count. The fillers are threads that live as long as the prefetcher, and each fills
// whole batches. (Threads that divided every batch would meet more often than a batch of small images is worth.) All
// waiting is on condition variables, so an idle filler takes no core from the trainer.
//
// Thread safety: one thread calls Next.
#ifndef STARRING_WORKER_DATA_PREFETCHER_H_
#define STARRING_WORKER_DATA_PREFETCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace starring {

class Prefetcher {
 public:
  struct Options {
    int depth = 0;         // 0: Next fills, on the caller's thread
    int filler_count = 1;  // more than `depth` fillers have no effect
    int64_t first_step = 0;
    int64_t end_step = 0;  // one past the last
    int64_t parts = 1;     // how many of these steps are a step of the user's, for messages
    absl::Duration deadline = absl::Seconds(60);
    // Called once each for every step, first `plan`, then `fill` on the same thread, and never for the slot that the
    // consumer has. `plan` is called in ascending order of steps, by one thread at a time; `fill` by up to filler_count
    // threads at the same time.
    std::function<void(int slot, int64_t step)> plan;
    std::function<void(int slot, int64_t step)> fill;
  };

  // ResourceExhausted if the system has no thread left.
  static absl::StatusOr<std::unique_ptr<Prefetcher>> Create(Options options);

  // Waits until the batches that are being filled are complete. No other batch is begun.
  ~Prefetcher();

  static int SlotCount(int depth) { return depth + 1; }

  // The slot of the next step, which the caller has until the next call. OutOfRange after the last step.
  // DeadlineExceeded, naming the step, if that step is not filled in time; the next call waits for it again.
  absl::StatusOr<int> Next();

 private:
  explicit Prefetcher(Options options);
  void RunFiller();
  bool IsFilled(int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int SlotOf(int64_t step) const;

  const Options options_;
  int64_t taken_end_;  // all lower steps were handed out; only the consumer's thread uses it

  Mutex mutex_;
  ConditionVariable filled_;                      // a step has been filled
  ConditionVariable released_;                    // the consumer has given a slot back, or end_ was lowered
  int64_t begun_end_ ABSL_GUARDED_BY(mutex_);     // all lower steps are filled or being filled
  int64_t released_end_ ABSL_GUARDED_BY(mutex_);  // all lower steps were given back
  int64_t end_ ABSL_GUARDED_BY(mutex_);           // no step from here on is begun: end_step, or 0 in the destructor
  std::vector<int64_t> slot_step_ ABSL_GUARDED_BY(mutex_);  // by slot: the step that was filled there; -1 for none

  std::vector<std::thread> fillers_;  // none with depth 0
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_PREFETCHER_H_
