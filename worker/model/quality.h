// How good a model's outputs are on a test set, beyond the mean loss and the part that is right.
//
// Everything is counted in whole numbers, so the counts of several ranks add up to the same result in any order.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_MODEL_QUALITY_H_
#define STARRING_WORKER_MODEL_QUALITY_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace starring {

// With more classes there is no confusion matrix, which would be too large to be read.
inline constexpr int64_t kConfusionClassesMax = 64;
// With more bits there is no AUC: each takes a MiB, and 32 sums over the ranks.
inline constexpr int64_t kAucOutputsMax = 8;
inline constexpr int64_t kTopClasses = 5;

struct Quality {
  LossKind loss = LossKind::kSoftmax;
  double loss_mean = 0;  // over the samples
  double accuracy = 0;   // kSoftmax, kBce: part of the samples that are right, as LossResult has it
  double top5 = 0;       // kSoftmax: part of the samples whose class is among the five largest outputs
  // The area under the ROC curve, of two classes or as a mean over the bits. 0: not measured, because there are more
  // than kAucOutputsMax of them, or no sample of one of both kinds.
  double auc = 0;
  // kMse. With several outputs, r2 is 1 - (all squared errors) / (all squared distances from each output's mean), and 0
  // if no target varies.
  double rmse = 0, r2 = 0;
  // kSoftmax: (classes, classes), row by row: samples by their class, then by that of the largest output. Empty with
  // more than kConfusionClassesMax classes.
  std::vector<int64_t> confusion;
};

// A line for people: "loss 0.3114, accuracy 91.20 %, top 5 99.10 %".
std::string ToString(const Quality& quality);

// A line for people, of the classes that are taken for another most often: "most often 4 is taken for 9 (35 samples),
// ...". By `names`, or by number without them. Empty if there is no confusion matrix, or nothing but its diagonal.
std::string MostConfused(const Quality& quality, const std::vector<std::string>& names);

class QualityCounts {
 public:
  // Some MiB for AUC. REQUIRES: outputs >= 1.
  QualityCounts(LossKind loss, int64_t outputs);

  // Adds samples: (samples, outputs). kSoftmax: labels below `outputs`. The others: targets, as many as outputs.
  // REQUIRES: outputs are finite.
  void Add(std::span<const float> outputs, std::span<const int32_t> labels);
  void Add(std::span<const float> outputs, std::span<const float> targets);

  // To be summed over the ranks.
  std::span<double> counts() { return counts_; }

  // `loss_sum` and `correct` as LossResult has them, of all `samples`. kMse: `target_variance` is MeanVariance's.
  Quality Result(double loss_sum, double correct, int64_t samples, double target_variance) const;

 private:
  // Counts one sample for the AUC of `output`. `positive`: its bit is 1.
  void AddScore(int64_t output, float score, bool positive);
  double Auc() const;

  const LossKind loss_;
  const int64_t outputs_;
  int64_t auc_outputs_ = 0;
  size_t confusion_ = 0, auc_ = 0;  // where these begin in counts_, after the top 5
  std::vector<double> counts_;
};

// The variance of each of `outputs` columns of (samples, outputs) values, as a mean over the columns; 0 without values.
double MeanVariance(std::span<const float> values, int64_t outputs);

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_QUALITY_H_
