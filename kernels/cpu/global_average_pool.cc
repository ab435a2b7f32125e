#include <algorithm>

#include "common/arithmetic/instruction_set.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"

namespace starring {
namespace {

// The mean over height and width, for images [begin, end), on NHWC float32.
struct Args {
  const float* in;
  float* out;
  int64_t space, channels;
  int64_t begin, end;
};

[[gnu::always_inline]] inline void ForwardLoop(const Args& g) {
  for (int64_t image = g.begin; image < g.end; ++image) {
    const float* const x = g.in + image * g.space * g.channels;
    float* const y = g.out + image * g.channels;
    // y holds the sums of all channels, and lanes run along the channels. So each sum is in the order of the pixels,
    // for every instruction set and number of threads.
    std::copy_n(x, g.channels, y);
    for (int64_t p = 1; p < g.space; ++p) {
#pragma GCC ivdep
      for (int64_t c = 0; c < g.channels; ++c) y[c] += x[p * g.channels + c];
    }
    // This is a division, as on the GPU: the product with the reciprocal would round twice.
    for (int64_t c = 0; c < g.channels; ++c) y[c] /= static_cast<float>(g.space);
  }
}

[[gnu::always_inline]] inline void BackwardLoop(const Args& g) {
  for (int64_t image = g.begin; image < g.end; ++image) {
    const float* const dy = g.in + image * g.channels;
    float* const dx = g.out + image * g.space * g.channels;
    for (int64_t p = 0; p < g.space; ++p) {
#pragma GCC ivdep
      for (int64_t c = 0; c < g.channels; ++c) dx[p * g.channels + c] = dy[c] / static_cast<float>(g.space);
    }
  }
}

STARRING_DEFINE_CLONES(kForward, ForwardLoop, Args);
STARRING_DEFINE_CLONES(kBackward, BackwardLoop, Args);

class CpuGlobalAveragePool : public FloatOperation {
 public:
  CpuGlobalAveragePool(const CpuContext* context, const GlobalAveragePoolSpec& spec) : context_(context), spec_(spec) {}

  void Forward(const float* x, const float*, const float*, float* y) override { Run(kForward, x, y); }
  void Backward(const float*, const float*, const float*, float* dy, float* dx, float*, float*) override {
    Run(kBackward, dy, dx);
  }

 private:
  using Clones = void (*const[kInstructionSetCount])(const Args&);
  void Run(const Clones& clones, const float* in, float* out) {
    const auto pass = clones[static_cast<int>(context_->instruction_set)];
    // Shares are whole images, so no sum is cut.
    ParallelRanges(context_->threads, spec_.batch, 1, [&](int64_t begin, int64_t end) {
      pass({in, out, spec_.height * spec_.width, spec_.channels, begin, end});
    });
  }

  const CpuContext* const context_;
  const GlobalAveragePoolSpec spec_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                   const GlobalAveragePoolSpec& spec) {
  return std::make_unique<CpuGlobalAveragePool>(context, spec);
}

}  // namespace starring
