#include "worker/train/run_history.h"

#include "absl/strings/str_cat.h"

namespace starring {
namespace {

// ToValues writes, and FromValues reads, as many values for each epoch and each loss.
constexpr size_t kEpochValues = 6;
constexpr size_t kLossValues = 3;
// Numbers of steps and samples are whole and below 2^53, which float64 holds exactly.
constexpr size_t kHeadValues = 7;

}  // namespace

std::vector<double> ToValues(const RunHistory& history) {
  std::vector<double> values = {static_cast<double>(history.statistics.size()),
                                static_cast<double>(history.epochs.size()),
                                static_cast<double>(history.losses.size()),
                                history.epoch_loss_sum,
                                static_cast<double>(history.epoch_samples),
                                history.seconds,
                                history.epoch_seconds};
  values.insert(values.end(), history.statistics.begin(), history.statistics.end());
  for (const EpochSummary& one : history.epochs) {
    values.insert(values.end(), {static_cast<double>(one.epoch), one.train_loss, one.test_loss, one.test_accuracy,
                                 one.seconds, one.samples_per_second});
  }
  for (const StepLoss& one : history.losses) {
    values.insert(values.end(), {static_cast<double>(one.step), one.seconds, one.loss});
  }
  return values;
}

absl::StatusOr<RunHistory> FromValues(std::span<const double> values, int64_t statistics_size) {
  const auto wrong = [&] {
    return absl::DataLossError(absl::StrCat("a snapshot's ", values.size(), " side values are no history of this run"));
  };
  if (values.size() < kHeadValues) return wrong();
  // The counts must add up to the values that have come, so a damaged count cannot make `resize` take gigabytes.
  const double counts = values[0] + kEpochValues * values[1] + kLossValues * values[2];
  if (values[0] != static_cast<double>(statistics_size) || values[1] < 0 || values[2] < 0 ||
      counts != static_cast<double>(values.size() - kHeadValues)) {
    return wrong();
  }
  RunHistory history{.epoch_loss_sum = values[3],
                     .epoch_samples = static_cast<int64_t>(values[4]),
                     .seconds = values[5],
                     .epoch_seconds = values[6]};
  auto next = values.begin() + kHeadValues;
  for (int64_t i = 0; i < statistics_size; ++i) history.statistics.push_back(static_cast<float>(*next++));
  // A count that is no whole number is truncated, and the walk ends before the last value.
  history.epochs.resize(static_cast<size_t>(values[1]));
  for (EpochSummary& one : history.epochs) {
    one.epoch = static_cast<int64_t>(*next++);
    for (double* const value :
         {&one.train_loss, &one.test_loss, &one.test_accuracy, &one.seconds, &one.samples_per_second}) {
      *value = *next++;
    }
  }
  history.losses.resize(static_cast<size_t>(values[2]));
  for (StepLoss& one : history.losses) {
    one.step = static_cast<int64_t>(*next++);
    one.seconds = *next++;
    one.loss = *next++;
  }
  return history;
}

}  // namespace starring
