// Copies arrays. std::ranges::copy from a span of const elements is a loop over elements with libstdc++ 12, which takes
// 1.1 times as long as memmove for arrays that are in the cache.
#ifndef STARRING_COMMON_BASE_COPY_ARRAY_H_
#define STARRING_COMMON_BASE_COPY_ARRAY_H_

#include <cstring>
#include <span>
#include <type_traits>

#include "common/base/check.h"

namespace starring {

// The first elements of `to` become those of `from`. REQUIRES: `to` is not shorter, and they do not overlap.
template <typename T>
void CopyArray(std::span<const std::type_identity_t<T>> from, std::span<T> to) {
  static_assert(std::is_trivially_copyable_v<T>);
  CHECK_LE(from.size(), to.size());
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size_bytes());
}

}  // namespace starring

#endif  // STARRING_COMMON_BASE_COPY_ARRAY_H_
