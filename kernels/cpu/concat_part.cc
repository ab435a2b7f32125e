#include <algorithm>
#include <cstdint>

#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"

namespace starring {
namespace {

// The smallest share of a thread. Below it, starting a thread costs more than the copy.
constexpr int64_t kGrainElements = 16384;

class CpuConcatPart : public FloatOperation {
 public:
  CpuConcatPart(const CpuContext* context, const ConcatPartSpec& spec) : context_(context), spec_(spec) {}

  void Forward(const float* x, const float*, const float*, float* y) override {
    // Each input of the concat is an operation of its own, and writes only its channels of each pixel.
    ForPixels([&](int64_t p) {
      std::copy_n(x + p * spec_.channels, spec_.channels, y + p * spec_.out_channels + spec_.offset);
    });
  }
  void Backward(const float*, const float*, const float*, float* dy, float* dx, float*, float*) override {
    ForPixels([&](int64_t p) {
      std::copy_n(dy + p * spec_.out_channels + spec_.offset, spec_.channels, dx + p * spec_.channels);
    });
  }

 private:
  template <typename Copy>
  void ForPixels(const Copy& copy) const {
    const int64_t grain = std::max<int64_t>(1, kGrainElements / spec_.channels);
    ParallelRanges(context_->threads, spec_.batch * spec_.pixels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) copy(p);
    });
  }

  const CpuContext* const context_;
  const ConcatPartSpec spec_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context, const ConcatPartSpec& spec) {
  return std::make_unique<CpuConcatPart>(context, spec);
}

}  // namespace starring
