// Runs a producer of numbered batches some steps ahead of their consumer.
//
// There are depth + 1 slots: one is the consumer's, up to `depth` are ready or being filled. Step s lives in slot
// (s - first_step) mod slot_count.
//
// Thread safety: Next belongs to one thread. `fill` is called by one thread of the prefetcher's own or, with depth 0,
// by Next on the caller's.
#ifndef STARRING_WORKER_DATA_PREFETCHER_H_
#define STARRING_WORKER_DATA_PREFETCHER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace starring {

class Prefetcher {
 public:
  struct Options {
    int depth = 0;  // 0: no thread; Next fills
    int64_t first_step = 0;
    int64_t end_step = 0;  // one past the last
    absl::Duration deadline = absl::Seconds(60);
    // Fills `slot` with the batch of `step`; called for every step once, in ascending order, never for a slot that the
    // consumer holds. After an error it is not called again.
    std::function<absl::Status(int slot, int64_t step)> fill;
  };

  // ResourceExhausted when the system gives no thread.
  static absl::StatusOr<std::unique_ptr<Prefetcher>> Create(Options options);

  // Waits for the call of `fill` under way, not for more.
  ~Prefetcher();

  static int SlotCount(int depth) { return depth + 1; }

  // The slot of the next step; it is the caller's until the next call. Steps filled before an error are still handed
  // out; then, and from then on: the error of `fill`, or OutOfRange behind the last step. DeadlineExceeded, naming the
  // step, when it is not ready in time; the next call waits again.
  absl::StatusOr<int> Next();

 private:
  explicit Prefetcher(Options options);
  absl::StatusOr<int> FillAndTake();
  void Produce();
  int SlotOf(int64_t step) const;

  const Options options_;
  int64_t taken_end_;  // steps below were handed out; the consumer's thread only

  std::mutex mutex_;
  std::condition_variable ready_;     // filled_end_ or error_ has changed
  std::condition_variable released_;  // released_end_ or stop_ has changed
  int64_t filled_end_;                // steps below are filled
  int64_t released_end_;              // steps below have been given back
  absl::Status error_;                // of `fill` for step filled_end_
  bool stop_ = false;

  std::thread producer_;  // not joinable with depth 0
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_PREFETCHER_H_
