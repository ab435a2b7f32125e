#include "common/reduce/arrays/element_sum.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "common/arithmetic/sum_in_order.h"
#include "common/base/check.h"

namespace starring {
namespace {

// The memory is the caller's and may have any type, so reads of 16 bits need the attribute.
using Bits16 = uint16_t __attribute__((may_alias));

// Elements are added in blocks of this length, so that a sum stays in the L1 cache from the first addition to the
// rounding.
constexpr int64_t kBlockElements = 2048;
constexpr int64_t kNarrowBlockElements = 512;  // the widened contributions as well

// ---- Loops. `elements` and `floats` do not overlap; the pragma says so.

struct WidenArgs {
  const std::byte* elements;
  float* floats;
  int64_t count;
};

[[gnu::always_inline]] inline void WidenBfloat16Loop(const WidenArgs& args) {
  const auto* const in = reinterpret_cast<const Bits16*>(args.elements);
  float* const out = args.floats;
  const int64_t count = args.count;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(uint32_t{in[i]} << 16);
}

// The exponent of float16 is taken for one of float32, and the product corrects it; it also normalises subnormal
// numbers. Infinities and NaN get all bits of the exponent.
[[gnu::always_inline]] inline void WidenFloat16Loop(const WidenArgs& args) {
  const auto* const in = reinterpret_cast<const Bits16*>(args.elements);
  float* const out = args.floats;
  const int64_t count = args.count;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t half = in[i];
    const uint32_t magnitude = (half & 0x7fff) << 13;
    const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t special = magnitude >= 0x1fu << 23 ? 0xffu << 23 : 0u;
    out[i] = std::bit_cast<float>((half & 0x8000) << 16 | scaled | special);
  }
}

struct NarrowArgs {
  const float* floats;
  std::byte* elements;
  int64_t count;
};

[[gnu::always_inline]] inline void NarrowBfloat16Loop(const NarrowArgs& args) {
  const float* const in = args.floats;
  auto* const out = reinterpret_cast<Bits16*>(args.elements);
  const int64_t count = args.count;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i]);
    // Half a unit less one, and the last bit that stays: this rounds to the nearest, and a tie to an even number.
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    // Rounding could make an infinity of a NaN.
    const uint32_t quiet = bits >> 16 | 0x40;
    out[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
}

// Three ranges of magnitudes: what rounds to infinity, or is infinite or a NaN; what becomes subnormal, where an
// addition rounds; all others, where the exponent is shifted.
[[gnu::always_inline]] inline void NarrowFloat16Loop(const NarrowArgs& args) {
  // The bits of 0.5f, whose last place is worth 2^-24, as that of a subnormal float16 is. So an addition of 0.5f rounds
  // a small magnitude to a subnormal float16.
  constexpr uint32_t kMagic = ((127 - 15) + (23 - 10) + 1) << 23;
  const float* const in = args.floats;
  auto* const out = reinterpret_cast<Bits16*>(args.elements);
  const int64_t count = args.count;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i]);
    const uint32_t magnitude = bits & 0x7fffffff;
    // A NaN stays one, and the others become infinite.
    const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic);
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - kMagic;
    const uint32_t normal = (magnitude - (uint32_t{127 - 15} << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t half = magnitude < uint32_t{127 - 14} << 23 ? subnormal : normal;
    half = magnitude >= uint32_t{127 + 16} << 23 ? large : half;
    out[i] = static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
  }
}

struct DivideArgs {
  float* sum;
  float divisor;
  int64_t count;
};
[[gnu::always_inline]] inline void DivideLoop(const DivideArgs& args) {
  float* const sum = args.sum;
  const float divisor = args.divisor;
  const int64_t count = args.count;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] /= divisor;
}
[[gnu::always_inline]] inline void MultiplyLoop(const DivideArgs& args) {
  float* const sum = args.sum;
  const float factor = 1.0f / args.divisor;
  const int64_t count = args.count;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] *= factor;
}

STARRING_DEFINE_CLONES(kWidenBfloat16, WidenBfloat16Loop, WidenArgs);
STARRING_DEFINE_CLONES(kWidenFloat16, WidenFloat16Loop, WidenArgs);
STARRING_DEFINE_CLONES(kNarrowBfloat16, NarrowBfloat16Loop, NarrowArgs);
STARRING_DEFINE_CLONES(kNarrowFloat16, NarrowFloat16Loop, NarrowArgs);
STARRING_DEFINE_CLONES(kDivide, DivideLoop, DivideArgs);
STARRING_DEFINE_CLONES(kMultiply, MultiplyLoop, DivideArgs);

// Whether a product with the reciprocal has the bits of the quotient, and costs less: both are exact powers of two.
bool HasExactReciprocal(float divisor) {
  const auto bits = std::bit_cast<uint32_t>(divisor);
  const uint32_t exponent = bits >> 23 & 0xff;
  // With a mantissa of 0, exponent 0 is zero and 255 infinity. 254 is 2^127, whose reciprocal is subnormal.
  return (bits & 0x7fffff) == 0 && exponent > 0 && exponent < 254;
}

void Divide(std::span<float> sum, float divisor, InstructionSet set) {
  if (divisor == 1.0f) return;
  const DivideArgs args = {.sum = sum.data(), .divisor = divisor, .count = std::ssize(sum)};
  (HasExactReciprocal(divisor) ? kMultiply : kDivide)[static_cast<int>(set)](args);
}

}  // namespace

const char* ElementTypeName(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kBfloat16:
      return "bfloat16";
    case ElementType::kFloat16:
      return "float16";
  }
  return "an unknown type";
}

void Widen(ElementType type, const std::byte* elements, std::span<float> floats, InstructionSet set) {
  if (floats.empty()) return;
  if (type == ElementType::kFloat32) {
    std::memcpy(floats.data(), elements, floats.size_bytes());
    return;
  }
  const WidenArgs args = {.elements = elements, .floats = floats.data(), .count = std::ssize(floats)};
  (type == ElementType::kBfloat16 ? kWidenBfloat16 : kWidenFloat16)[static_cast<int>(set)](args);
}

void Finish(const SumResult& result, std::span<float> sum, std::byte* elements, InstructionSet set) {
  if (sum.empty()) return;
  Divide(sum, result.divisor, set);
  if (result.type == ElementType::kFloat32) {
    std::memcpy(elements, sum.data(), sum.size_bytes());
    return;
  }
  const NarrowArgs args = {.floats = sum.data(), .elements = elements, .count = std::ssize(sum)};
  (result.type == ElementType::kBfloat16 ? kNarrowBfloat16 : kNarrowFloat16)[static_cast<int>(set)](args);
}

void AddElements(ElementType type, const std::byte* elements, std::span<float> sum, InstructionSet set) {
  float widened[kNarrowBlockElements];
  while (!sum.empty()) {
    const std::span<float> block = sum.first(std::min<size_t>(kNarrowBlockElements, sum.size()));
    const std::byte* added = elements;
    if (type != ElementType::kFloat32) {
      Widen(type, elements, std::span(widened).first(block.size()), set);
      added = reinterpret_cast<const std::byte*>(widened);
    }
    const std::byte* const both[] = {reinterpret_cast<const std::byte*>(block.data()), added};
    SumInOrder(both, block, set);
    elements += std::ssize(block) * ElementBytes(type);
    sum = sum.subspan(block.size());
  }
}

void SumContributions(std::span<const std::byte* const> contributions, int64_t count, const SumResult& result,
                      std::byte* out, InstructionSet set) {
  CHECK(!contributions.empty());
  const bool is_wide = result.type == ElementType::kFloat32;
  const int64_t block_elements = is_wide ? kBlockElements : kNarrowBlockElements;
  alignas(64) float sum[kBlockElements];
  std::vector<float> widened(is_wide ? 0 : contributions.size() * kNarrowBlockElements);
  std::vector<const std::byte*> inputs(contributions.size());
  for (int64_t begin = 0; begin < count; begin += block_elements) {
    const int64_t size = std::min(block_elements, count - begin);
    const int64_t at = begin * ElementBytes(result.type);
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = contributions[i] + at;
      if (is_wide) continue;
      const auto place = std::span(widened).subspan(i * kNarrowBlockElements, size);
      Widen(result.type, inputs[i], place, set);
      inputs[i] = reinterpret_cast<const std::byte*>(place.data());
    }
    const auto block = std::span(sum).first(size);
    // A block is read whole before its result is written, so `out` may be a contribution.
    SumAsTree(inputs, block, set);
    Finish(result, block, out + at, set);
  }
}

}  // namespace starring
