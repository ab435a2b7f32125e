#include <cmath>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"

namespace starring {
namespace {

class CpuSoftmaxCrossEntropy : public Loss {
 public:
  CpuSoftmaxCrossEntropy(const CpuContext* context, const LossSpec& spec)
      : context_(context), spec_(spec), samples_(static_cast<size_t>(spec.batch)) {}

  void Run(const float* logits, LossTargets targets, float scale, float* dlogits) override {
    const int32_t* const labels = targets.labels();
    // Each sample's loss is kept, not added: a sum per thread would depend on where the batch is cut.
    ParallelRanges(context_->threads, spec_.batch, kGrainSamples, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t offset = i * spec_.outputs;
        RunSample(logits + offset, labels[i], scale, dlogits == nullptr ? nullptr : dlogits + offset, samples_[i]);
      }
    });
  }

  // Adds sample by sample, so that the sum does not depend on the number of threads.
  LossResult Result() override {
    LossResult result;
    for (const Sample& sample : samples_) {
      result.loss_sum += sample.loss;
      result.correct += sample.correct;
    }
    return result;
  }

 private:
  struct Sample {
    double loss = 0;
    int64_t correct = 0;
  };
  static constexpr int64_t kGrainSamples = 64;

  void RunSample(const float* logits, int32_t label, float scale, float* dlogits, Sample& sample) const {
    CHECK(label >= 0 && label < spec_.outputs) << "label " << label << " of " << spec_.outputs << " classes";
    // Comparisons with NaN are false. A NaN among the logits still makes the sum below NaN, and with it the loss.
    int64_t best = 0;
    for (int64_t c = 1; c < spec_.outputs; ++c) {
      if (logits[c] > logits[best]) best = c;
    }
    const float maximum = logits[best];
    const float label_logit = logits[label];  // read before the first write: dlogits may alias logits
    double sum = 0;
    double logarithm_sum = 0;  // of log(power), over the classes
    for (int64_t c = 0; c < spec_.outputs; ++c) {
      // The largest exponent is 0: without the subtraction, logits above 88 would overflow.
      const float shifted = logits[c] - maximum;
      const float power = std::exp(shifted);
      sum += power;
      logarithm_sum += shifted;
      if (dlogits != nullptr) dlogits[c] = power;
    }
    // This is -log(softmax) without the softmax: a probability so small that it is 0 in float has a finite loss here.
    // The loss is in double, because the losses of all samples are added.
    sample.loss = std::log(sum) - static_cast<double>(label_logit - maximum);
    const double smoothing = spec_.label_smoothing;
    const double other = smoothing / static_cast<double>(spec_.outputs);  // the target of a class that is not the label
    if (smoothing > 0) {
      // The targets' sum is 1, so log(sum) has the factor 1. Without smoothing this would be NaN for a logit of
      // -infinity, whose factor is 0.
      sample.loss =
          std::log(sum) - (1 - smoothing) * static_cast<double>(label_logit - maximum) - other * logarithm_sum;
    }
    sample.correct = best == label ? 1 : 0;
    if (dlogits == nullptr) return;
    // dlogits hold the powers, so no exp is computed twice.
    const float factor = static_cast<float>(scale / sum);
    // Without smoothing, this 0 and this scale leave the bits as they are.
    const float scaled_other = static_cast<float>(scale * other);
    for (int64_t c = 0; c < spec_.outputs; ++c) dlogits[c] = dlogits[c] * factor - scaled_other;
    dlogits[label] -= static_cast<float>(scale * (1 - smoothing));
  }

  const CpuContext* const context_;
  const LossSpec spec_;
  std::vector<Sample> samples_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loss>> CreateCpuSoftmaxCrossEntropy(CpuContext* context, const LossSpec& spec) {
  try {
    return std::make_unique<CpuSoftmaxCrossEntropy>(context, spec);
  } catch (const std::bad_alloc&) {  // by the vector; no exception may leave this target
    return absl::ResourceExhaustedError(
        absl::StrCat("softmax cross entropy: no memory for the losses of ", spec.batch, " samples"));
  }
}

}  // namespace starring
