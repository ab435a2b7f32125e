#include "worker/exchange/ring/add_into.h"

#include <cstddef>

#include "common/check.h"

namespace starring {
namespace {

__attribute__((target_clones("default", "avx2", "avx512f"))) void Add(float* __restrict sum,
                                                                      const float* __restrict own, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += own[i];
}

}  // namespace

void AddInto(std::span<float> sum, std::span<const float> own) {
  CHECK_EQ(sum.size(), own.size());
  Add(sum.data(), own.data(), sum.size());
}

}  // namespace starring
