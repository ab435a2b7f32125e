// How good a model's outputs are on a test set, beyond the mean loss and the part that is right.
//
// The ranks' counts are added up, in any order: whole numbers, and for AUC the scores of the samples, each of which one
// rank alone has. So the result does not depend on the number of ranks.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_MODEL_QUALITY_H_
#define STARRING_WORKER_MODEL_QUALITY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace starring {

// With more classes there is no confusion matrix, which would be too large to be read.
inline constexpr int64_t kConfusionClassesMax = 64;
// With more scores, which are samples * bits, there is no AUC: it would take more memory, and more sums over the ranks.
inline constexpr int64_t kAucScoresMax = 1 << 21;
inline constexpr int64_t kTopClasses = 5;

struct Quality {
  LossKind loss = LossKind::kSoftmax;
  double loss_mean = 0;  // over the samples
  double accuracy = 0;   // kSoftmax, kBce: part of the samples that are right, as LossResult has it
  double top5 = 0;       // kSoftmax: part of the samples whose class is among the five largest outputs
  // The area under the ROC curve, of two classes or as a mean over the bits. 0: not measured, because there are more
  // than kAucScoresMax scores, or no sample of one of both kinds.
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
  // Memory for two numbers a score. REQUIRES: outputs >= 1; `samples` are those of the test set.
  QualityCounts(LossKind loss, int64_t outputs, int64_t samples);

  // Adds the samples with these numbers: (samples, outputs). kSoftmax: labels below `outputs`. The others: targets, as
  // many as outputs. Each sample is added once, by one rank. One with an output that is not finite is left out.
  void Add(std::span<const int64_t> samples, std::span<const float> outputs, std::span<const int32_t> labels);
  void Add(std::span<const int64_t> samples, std::span<const float> outputs, std::span<const float> targets);

  // To be summed over the ranks.
  std::span<double> counts() { return counts_; }

  // `loss_sum` and `correct` as LossResult has them, of all samples. kMse: `target_variance` is MeanVariance's.
  Quality Result(double loss_sum, double correct, double target_variance) const;

 private:
  void AddScore(int64_t sample, int64_t output, double score, bool positive);
  double Auc() const;
  // The same of one output; nothing without samples of both kinds.
  std::optional<double> AucOf(int64_t output) const;

  const LossKind loss_;
  const int64_t outputs_;
  const int64_t samples_;
  int64_t auc_outputs_ = 0;
  // Where these begin in counts_, after the top 5. Scores are (samples, auc_outputs_), then come as many bits.
  size_t confusion_ = 0, scores_ = 0;
  std::vector<double> counts_;
};

// The variance of each of `outputs` columns of (samples, outputs) values, as a mean over the columns; 0 without values.
double MeanVariance(std::span<const float> values, int64_t outputs);

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_QUALITY_H_
