#include <cmath>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"

namespace starring {
namespace {

// One output's part of its sample's loss, and the loss's derivative by the output, before both are divided by the
// number of outputs.
struct Term {
  double loss = 0;
  float derivative = 0;
};

Term SquaredError(float output, float target) {
  const float difference = output - target;
  return {.loss = static_cast<double>(difference) * difference, .derivative = 2 * difference};
}

Term BinaryCrossEntropy(float output, float target) {
  // The exponent is at most 0, so an output of any size overflows nothing.
  const float power = std::exp(-std::fabs(output));
  const float sigmoid = output >= 0 ? 1 / (1 + power) : power / (1 + power);
  // -t log(s) - (1 - t) log(1 - s), without a logarithm of a number that has been rounded to 0.
  const double loss = (output > 0 ? output : 0.0) - static_cast<double>(output) * target + std::log(1.0 + power);
  return {.loss = loss, .derivative = sigmoid - target};
}

bool IsRight(float output, float target) { return (output > 0) == (target > 0.5f); }

// kMse and kBce: every output has a target of its own.
class CpuValueLoss : public Loss {
 public:
  CpuValueLoss(const CpuContext* context, const LossSpec& spec)
      : context_(context), spec_(spec), samples_(static_cast<size_t>(spec.batch)) {}

  void Run(const float* outputs, LossTargets targets, float scale, float* doutputs) override {
    // Each sample's loss is kept, not added: a sum per thread would depend on where the batch is cut.
    ParallelRanges(context_->threads, spec_.batch, kGrainSamples, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t offset = i * spec_.outputs;
        samples_[i] = RunSample(outputs + offset, targets.values() + offset, scale,
                                doutputs == nullptr ? nullptr : doutputs + offset);
      }
    });
  }

  // Adds sample by sample, so that the sum does not depend on the number of threads.
  LossResult Result() override {
    LossResult result;
    for (const LossResult& sample : samples_) {
      result.loss_sum += sample.loss_sum;
      result.correct += sample.correct;
    }
    return result;
  }

 private:
  static constexpr int64_t kGrainSamples = 64;

  LossResult RunSample(const float* outputs, const float* targets, float scale, float* doutputs) const {
    const bool is_bce = spec_.kind == LossKind::kBce;
    // The loss is a mean over the outputs, as PyTorch's, so the derivative is divided by their number too.
    const float factor = scale / static_cast<float>(spec_.outputs);
    double sum = 0;
    bool right = is_bce;
    for (int64_t k = 0; k < spec_.outputs; ++k) {
      const float output = outputs[k];  // read before the write: doutputs may alias outputs
      const Term term = is_bce ? BinaryCrossEntropy(output, targets[k]) : SquaredError(output, targets[k]);
      sum += term.loss;
      right = right && IsRight(output, targets[k]);
      if (doutputs != nullptr) doutputs[k] = term.derivative * factor;
    }
    return {.loss_sum = sum / static_cast<double>(spec_.outputs), .correct = right ? 1 : 0};
  }

  const CpuContext* const context_;
  const LossSpec spec_;
  std::vector<LossResult> samples_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loss>> CreateCpuValueLoss(CpuContext* context, const LossSpec& spec) {
  CHECK(spec.kind != LossKind::kSoftmax);
  try {
    return std::make_unique<CpuValueLoss>(context, spec);
  } catch (const std::bad_alloc&) {  // by the vector; no exception may leave this target
    return absl::ResourceExhaustedError(absl::StrCat("loss: no memory for those of ", spec.batch, " samples"));
  }
}

}  // namespace starring
