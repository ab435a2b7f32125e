#include "worker/model/quality.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace starring {
namespace {

bool IsFinite(std::span<const float> row) {
  return std::ranges::all_of(row, [](float output) { return std::isfinite(output); });
}

}  // namespace

std::string ToString(const Quality& q) {
  std::string line = absl::StrFormat("loss %.6f", q.loss_mean);
  if (q.loss == LossKind::kMse) {
    absl::StrAppendFormat(&line, ", RMSE %.4g, R2 %.4f", q.rmse, q.r2);
    return line;
  }
  absl::StrAppendFormat(&line, ", accuracy %.2f %%", 100 * q.accuracy);
  if (q.loss == LossKind::kSoftmax) absl::StrAppendFormat(&line, ", top 5 %.2f %%", 100 * q.top5);
  if (q.auc > 0) absl::StrAppendFormat(&line, ", AUC %.4f", q.auc);
  return line;
}

std::string MostConfused(const Quality& quality, const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  size_t classes = 0;
  // At most kConfusionClassesMax turns.
  while (classes * classes < quality.confusion.size()) ++classes;
  std::vector<std::pair<int64_t, size_t>> places;  // minus the samples, and the place in the matrix
  for (size_t i = 0; i < quality.confusion.size(); ++i) {
    if (i / classes != i % classes && quality.confusion[i] > 0) places.emplace_back(-quality.confusion[i], i);
  }
  // Equal counts are in the order of the matrix, so the line does not depend on the sort.
  std::ranges::sort(places);
  const auto name = [&](size_t c) { return c < names.size() ? names[c] : absl::StrCat(c); };
  std::string line;
  for (size_t i = 0; i < std::min(places.size(), kShown); ++i) {
    const auto& [samples, place] = places[i];
    absl::StrAppend(&line, i == 0 ? "most often " : ", ", name(place / classes), " is taken for ",
                    name(place % classes), " (", -samples, ")");
  }
  return line;
}

QualityCounts::QualityCounts(LossKind loss, int64_t outputs, int64_t samples)
    : loss_(loss), outputs_(outputs), samples_(samples) {
  CHECK_GE(outputs, 1);
  size_t size = 0;
  if (loss == LossKind::kSoftmax) {
    confusion_ = 1;
    size = confusion_ + static_cast<size_t>(outputs <= kConfusionClassesMax ? outputs * outputs : 0);
    auc_outputs_ = outputs == 2 ? 1 : 0;
  }
  if (loss == LossKind::kBce) auc_outputs_ = outputs;
  // The division avoids the product, which may overflow.
  if (auc_outputs_ > kAucScoresMax / std::max<int64_t>(1, samples)) auc_outputs_ = 0;
  scores_ = size;
  // The ranks' exchange sums float64. Counts are whole numbers below 2^53, which float64 holds exactly.
  counts_.resize(size + static_cast<size_t>(2 * samples * auc_outputs_));
}

void QualityCounts::Add(std::span<const int64_t> samples, std::span<const float> outputs,
                        std::span<const int32_t> labels) {
  CHECK(loss_ == LossKind::kSoftmax);
  CHECK_EQ(samples.size(), labels.size());
  CHECK_EQ(outputs.size(), labels.size() * static_cast<size_t>(outputs_));
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto row = outputs.subspan(i * static_cast<size_t>(outputs_), static_cast<size_t>(outputs_));
    if (!IsFinite(row)) continue;
    const auto label = static_cast<size_t>(labels[i]);
    // The first of equal outputs counts as the larger, as in LossResult.
    const auto above = std::ranges::count_if(
        row, [&](const float& other) { return other > row[label] || (other == row[label] && &other < &row[label]); });
    counts_[0] += above < kTopClasses ? 1 : 0;
    const auto largest = static_cast<size_t>(std::ranges::max_element(row) - row.begin());
    if (outputs_ <= kConfusionClassesMax) counts_[confusion_ + label * static_cast<size_t>(outputs_) + largest] += 1;
    // With two classes softmax is a sigmoid of this difference, which has the order of the probabilities.
    if (auc_outputs_ == 1) AddScore(samples[i], 0, double{row[1]} - double{row[0]}, label == 1);
  }
}

void QualityCounts::Add(std::span<const int64_t> samples, std::span<const float> outputs,
                        std::span<const float> targets) {
  CHECK_EQ(outputs.size(), targets.size());
  CHECK_EQ(outputs.size(), samples.size() * static_cast<size_t>(outputs_));
  for (size_t i = 0; i < outputs.size() && auc_outputs_ > 0; ++i) {
    const size_t sample = i / static_cast<size_t>(outputs_), output = i % static_cast<size_t>(outputs_);
    if (std::isfinite(outputs[i])) {
      AddScore(samples[sample], static_cast<int64_t>(output), outputs[i], targets[i] > 0.5f);
    }
  }
}

void QualityCounts::AddScore(int64_t sample, int64_t output, double score, bool positive) {
  const auto place = scores_ + static_cast<size_t>(sample * auc_outputs_ + output);
  // One rank alone writes a sample's places, and others have 0 there: so the ranks' sum is a gather.
  counts_[place] = score;
  counts_[place + static_cast<size_t>(samples_ * auc_outputs_)] = positive ? 1 : 0;
}

// The probability that a sample of the second kind has a higher score than one of the first; equal scores count half
// (Fawcett, "An introduction to ROC analysis", 2006, section 7).
std::optional<double> QualityCounts::AucOf(int64_t output) const {
  std::vector<std::pair<double, bool>> scores;
  for (int64_t sample = 0; sample < samples_; ++sample) {
    const double* const score = counts_.data() + scores_ + sample * auc_outputs_ + output;
    scores.emplace_back(*score, score[samples_ * auc_outputs_] > 0.5);
  }
  // The sort makes the cost O(n log n). Every pair of kAucScoresMax scores would be 10^12 comparisons.
  std::ranges::sort(scores);
  double negatives = 0, positives = 0, pairs = 0;
  for (size_t begin = 0, end = 0; begin < scores.size(); begin = end) {
    double equal_negatives = 0, equal_positives = 0;
    for (; end < scores.size() && scores[end].first == scores[begin].first; ++end) {
      (scores[end].second ? equal_positives : equal_negatives) += 1;
    }
    pairs += equal_positives * (negatives + equal_negatives / 2);
    negatives += equal_negatives;
    positives += equal_positives;
  }
  if (negatives == 0 || positives == 0) return std::nullopt;
  return pairs / (negatives * positives);
}

double QualityCounts::Auc() const {
  double sum = 0;
  int64_t measured = 0;
  for (int64_t output = 0; output < auc_outputs_; ++output) {
    const std::optional<double> one = AucOf(output);
    sum += one.value_or(0);
    measured += one.has_value() ? 1 : 0;
  }
  return measured == 0 ? 0 : sum / static_cast<double>(measured);
}

Quality QualityCounts::Result(double loss_sum, double correct, double target_variance) const {
  const double count = static_cast<double>(std::max<int64_t>(1, samples_));
  Quality quality{.loss = loss_, .loss_mean = loss_sum / count, .auc = Auc(), .confusion = {}};
  if (loss_ == LossKind::kMse) {
    quality.rmse = std::sqrt(quality.loss_mean);
    // loss_mean is the mean squared error, so the quotient is the part of the variance that is left.
    quality.r2 = target_variance > 0 ? 1 - quality.loss_mean / target_variance : 0;
    return quality;
  }
  quality.accuracy = correct / count;
  if (loss_ == LossKind::kSoftmax) {
    quality.top5 = counts_[0] / count;
    const auto begin = counts_.begin() + static_cast<int64_t>(confusion_);
    quality.confusion.assign(begin, counts_.begin() + static_cast<int64_t>(scores_));
  }
  return quality;
}

double MeanVariance(std::span<const float> values, int64_t outputs) {
  const auto columns = static_cast<size_t>(outputs);
  const size_t samples = values.size() / columns;
  const auto count = static_cast<double>(samples);
  if (count == 0) return 0;
  std::vector<double> means(columns);
  for (size_t i = 0; i < values.size(); ++i) means[i % columns] += values[i];
  for (double& mean : means) mean /= count;
  // In a second pass, because sums of squares lose the variance of a column whose mean is far from 0.
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double distance = values[i] - means[i % columns];
    sum += distance * distance;
  }
  return sum / (count * static_cast<double>(outputs));
}

}  // namespace starring
