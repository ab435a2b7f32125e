#include "common/arithmetic/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/base/check.h"

namespace starring {
namespace {

// One sum of all elements would round a million times, and a block's 16 lanes fill the widest registers twice.
constexpr int64_t kBlockElements = 4096;
constexpr int64_t kLanes = 16;

struct Block {
  std::span<const float> values;
  double* sum;
};

// Lane l adds the elements l, l + kLanes, ... in this order. The lanes are then added as a tree.
[[gnu::always_inline]] inline void SumBlock(const Block& block) {
  const auto count = static_cast<int64_t>(block.values.size());
  const float* const values = block.values.data();
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (int64_t lane = 0; i + lane < count; ++lane) {
    const double value = values[i + lane];
    lanes[lane] += value * value;
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  *block.sum = lanes[0];
}

STARRING_DEFINE_CLONES(kSumBlock, SumBlock, Block);

}  // namespace

double SumOfSquares(std::span<const float> values, InstructionSet set) {
  double total = 0;
  while (!values.empty()) {
    const std::span<const float> block = values.first(std::min<size_t>(values.size(), kBlockElements));
    double sum = 0;
    kSumBlock[static_cast<int>(set)]({.values = block, .sum = &sum});
    total += sum;
    values = values.subspan(block.size());
  }
  return total;
}

float ClipFactor(double clip_norm, std::span<const float> gradient) {
  CHECK_GT(clip_norm, 0);
  // sqrt is correctly rounded on every processor (IEEE 754). PyTorch adds 1e-6 so that a norm of 0 divides.
  const double factor = clip_norm / (std::sqrt(SumOfSquares(gradient)) + 1e-6);
  // The comparison is false for NaN, which must not become 1.
  return factor > 1 ? 1.0f : static_cast<float>(factor);
}

}  // namespace starring
