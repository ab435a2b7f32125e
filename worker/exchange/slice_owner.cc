#include "worker/exchange/slice_owner.h"

#include <algorithm>
#include <cstddef>

#include "common/arithmetic/sum_in_order.h"
#include "common/base/check.h"

namespace starring {

// The vector may move its elements when it grows, but not the memory that they own: the spans stay valid.
std::span<float> HostSliceOwner::Allocate(int64_t count) { return allocated_.emplace_back(count).span(); }

void HostSliceOwner::Add(std::span<const float> own, std::span<float> sum) {
  // The sum is the first input, which is the one that SumInOrder may overwrite.
  const std::byte* const inputs[] = {std::as_bytes(sum).data(), std::as_bytes(own).data()};
  SumInOrder(inputs, sum);
}

void HostSliceOwner::CopyState(int bucket, int vector, std::span<float> out) {
  CHECK_EQ(std::ssize(out), owned_.slice_element_count(bucket));
  std::ranges::copy(owned_.state(bucket, vector), out.begin());
}

}  // namespace starring
