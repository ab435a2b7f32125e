#include "common/arithmetic/sum_in_order.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "common/check.h"

namespace starring {
namespace {

static_assert(std::endian::native == std::endian::little, "contributions are little-endian float32");

// A float on any byte boundary: the compiler uses unaligned loads, which cost nothing when the address is aligned.
using AnywhereFloat = float __attribute__((aligned(1), may_alias));

const AnywhereFloat* Floats(const std::byte* bytes) { return reinterpret_cast<const AnywhereFloat*>(bytes); }

struct SumArgs {
  const AnywhereFloat* a;
  const AnywhereFloat* b;
  const AnywhereFloat* c;
  const AnywhereFloat* d;
  float* sum;
  int64_t count;
};

// `sum` may be `a`: an element is read before it is written, which is what ivdep promises.
[[gnu::always_inline]] inline void Sum2Loop(const SumArgs& args) {
  const auto [a, b, c, d, sum, count] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}
[[gnu::always_inline]] inline void Sum3Loop(const SumArgs& args) {
  const auto [a, b, c, d, sum, count] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = (a[i] + b[i]) + c[i];
}
[[gnu::always_inline]] inline void Sum4Loop(const SumArgs& args) {
  const auto [a, b, c, d, sum, count] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = ((a[i] + b[i]) + c[i]) + d[i];
}

STARRING_DEFINE_CLONES(kSum2, Sum2Loop, SumArgs);
STARRING_DEFINE_CLONES(kSum3, Sum3Loop, SumArgs);
STARRING_DEFINE_CLONES(kSum4, Sum4Loop, SumArgs);

// With more than four inputs, the running sum of so many elements stays in the L1 cache between groups of inputs.
constexpr int64_t kBlockElements = 2048;

}  // namespace

void SumInOrder(std::span<const std::byte* const> inputs, std::span<float> sum, InstructionSet set) {
  CHECK(!inputs.empty());
  const int clone = static_cast<int>(set);
  if (inputs.size() == 1) {
    if (!sum.empty()) std::memmove(sum.data(), inputs[0], sum.size_bytes());
    return;
  }
  const int64_t count = std::ssize(sum);
  const int64_t block = inputs.size() <= 4 ? count : kBlockElements;
  for (int64_t begin = 0; begin < count; begin += block) {
    const auto at = [&](size_t input) { return Floats(inputs[input] + begin * sizeof(float)); };
    SumArgs args = {.a = at(0),
                    .b = at(1),
                    .c = nullptr,
                    .d = nullptr,
                    .sum = sum.data() + begin,
                    .count = std::min(block, count - begin)};
    for (size_t next = 1; next < inputs.size();) {
      const size_t left = inputs.size() - next;
      args.b = at(next);
      if (left == 1) {
        kSum2[clone](args);
        break;
      }
      args.c = at(next + 1);
      if (left == 2) {
        kSum3[clone](args);
        break;
      }
      args.d = at(next + 2);
      kSum4[clone](args);
      args.a = args.sum;
      next += 3;
    }
  }
}

}  // namespace starring
