#include <cstddef>
#include <cstdint>
#include <iterator>

#include "common/arithmetic/instruction_set.h"
#include "kernels/activation_math.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"

namespace starring {
namespace {

// The smallest share of a thread. Below it, starting a thread costs more than the loop.
constexpr int64_t kGrainElements = 4096;

struct Args {
  const float* in;  // forward: x; backward: what the slope is computed from
  const float* dy;
  float* out;
  int64_t count;
  float parameter;
};

// An output may be an input, which ivdep says is harmless here.
template <ActivationFunction function>
[[gnu::always_inline]] inline void ForwardLoop(const Args& g) {
#pragma GCC ivdep
  for (int64_t i = 0; i < g.count; ++i) g.out[i] = activation::ValueAt<function>(g.in[i], g.parameter);
}

template <ActivationFunction function>
[[gnu::always_inline]] inline void BackwardLoop(const Args& g) {
#pragma GCC ivdep
  for (int64_t i = 0; i < g.count; ++i) g.out[i] = g.dy[i] * activation::SlopeAt<function>(g.in[i], g.parameter);
}

using Clones = void (*const[kInstructionSetCount])(const Args&);

#define STARRING_ACTIVATION_LOOPS(name)                                               \
  STARRING_DEFINE_CLONES(name##Forward, ForwardLoop<ActivationFunction::name>, Args); \
  STARRING_DEFINE_CLONES(name##Backward, BackwardLoop<ActivationFunction::name>, Args)

STARRING_ACTIVATION_LOOPS(kRelu6);
STARRING_ACTIVATION_LOOPS(kSigmoid);
STARRING_ACTIVATION_LOOPS(kTanh);
STARRING_ACTIVATION_LOOPS(kGelu);
STARRING_ACTIVATION_LOOPS(kGeluTanh);
STARRING_ACTIVATION_LOOPS(kSilu);
STARRING_ACTIVATION_LOOPS(kLeakyRelu);
STARRING_ACTIVATION_LOOPS(kScale);

// In the order of ActivationFunction.
constexpr Clones* kForward[] = {&kRelu6Forward,    &kSigmoidForward, &kTanhForward,      &kGeluForward,
                                &kGeluTanhForward, &kSiluForward,    &kLeakyReluForward, &kScaleForward};
constexpr Clones* kBackward[] = {&kRelu6Backward,    &kSigmoidBackward, &kTanhBackward,      &kGeluBackward,
                                 &kGeluTanhBackward, &kSiluBackward,    &kLeakyReluBackward, &kScaleBackward};
constexpr size_t kFunctionCount = static_cast<size_t>(ActivationFunction::kScale) + 1;  // the last one
static_assert(std::size(kForward) == kFunctionCount && std::size(kBackward) == kFunctionCount);

class CpuActivation : public FloatOperation {
 public:
  CpuActivation(const CpuContext* context, const ActivationSpec& spec) : context_(context), spec_(spec) {}

  void Forward(const float* x, const float*, const float*, float* y) override {
    Run(*kForward[static_cast<int>(spec_.function)], x, nullptr, y);
  }
  void Backward(const float* x, const float*, const float* y, float* dy, float* dx, float*, float*) override {
    // The slope of a scale is constant: any readable number does.
    const float* const at = spec_.function == ActivationFunction::kScale ? dy
                            : BackwardReadsInput(spec_.function)         ? x
                                                                         : y;
    Run(*kBackward[static_cast<int>(spec_.function)], at, dy, dx);
  }

 private:
  void Run(const Clones& clones, const float* in, const float* dy, float* out) const {
    const auto loop = clones[static_cast<int>(context_->instruction_set)];
    // Where the ranges are cut changes no bit: an element depends on its own inputs alone.
    ParallelRanges(
        context_->threads, spec_.batch * spec_.sample_elements, kGrainElements, [&](int64_t begin, int64_t end) {
          loop({in + begin, dy == nullptr ? nullptr : dy + begin, out + begin, end - begin, spec_.parameter});
        });
  }

  const CpuContext* const context_;
  const ActivationSpec spec_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context, const ActivationSpec& spec) {
  return std::make_unique<CpuActivation>(context, spec);
}

}  // namespace starring
