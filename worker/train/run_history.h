// The state of a run besides parameters and optimizer state. The snapshot of a step contains it (SIDE_VALUES), so every
// worker of a generation begins with the same state, and a worker that has just joined can report the whole run.
#ifndef STARRING_WORKER_TRAIN_RUN_HISTORY_H_
#define STARRING_WORKER_TRAIN_RUN_HISTORY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/train/progress.h"

namespace starring {

// Losses of 24 bytes that a history may have. It travels as one message, of 64 MiB at most.
inline constexpr int64_t kHistoryLossesMax = 2'000'000;

struct RunHistory {
  std::vector<float> statistics;  // batch norm's running statistics, in the order of Network::buffers()
  double epoch_loss_sum = 0;      // over the samples of the epoch in progress
  int64_t epoch_samples = 0;
  double seconds = 0;        // of training, in epochs that are over
  double epoch_seconds = 0;  // in the one in progress
  std::vector<EpochSummary> epochs;
  std::vector<StepLoss> losses;  // with --record_losses
};

std::vector<double> ToValues(const RunHistory& history);
// DataLoss if they are no history, or one with another number of statistics.
absl::StatusOr<RunHistory> FromValues(std::span<const double> values, int64_t statistics_size);

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_RUN_HISTORY_H_
