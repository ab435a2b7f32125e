// Saves checkpoints in the background, restores the newest one.
//
// Save snapshots parameters, optimizer state and buffers (a copy in memory, collective over the ranks) and returns; a
// thread of rank 0 writes the files while training goes on. One write at a time: a Save waits for the one before.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECKPOINTER_H_
#define STARRING_WORKER_CHECKPOINTER_H_

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bucket_map.h"
#include "common/checkpoint.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/network.h"
#include "worker/worker_options.h"

namespace starring {

class Checkpointer {
 public:
  struct Options {
    const WorkerOptions* worker = nullptr;  // these outlive the checkpointer
    Network* network = nullptr;
    const BucketMap* buckets = nullptr;
    int64_t steps_per_epoch = 1;
    std::function<void(const std::string&)> warn;  // a person reads it
  };
  // InvalidArgument if --checkpoint_dir holds checkpoints and --resume is not given: a run would mix with another's.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(Options options);
  ~Checkpointer();

  // Fills parameters, the network's buffers and `state` (one vector per state vector; empty if there is no checkpoint)
  // from the newest complete checkpoint, and returns the step to go on with, 0 without one. Every rank reads for
  // itself.
  absl::StatusOr<int64_t> Restore(std::span<float> parameters, std::vector<std::vector<float>>* state);

  // Collective, with no bucket in flight. An error is the exchange's; a file that cannot be written is a warning.
  absl::Status Save(int64_t step, std::span<const float> parameters, GradientExchange* exchange);

  // Until the last Save is on disk.
  void Wait();

 private:
  explicit Checkpointer(Options options);
  std::map<std::string, std::string> SharedFlags() const;
  std::vector<std::vector<ElementRange>> OwnerRanges() const;

  const Options options_;
  std::vector<std::string> state_names_;
  std::future<absl::Status> write_;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINTER_H_
