// Finds a NaN or an infinity, at the speed of reading.
#ifndef STARRING_COMMON_ARITHMETIC_NON_FINITE_H_
#define STARRING_COMMON_ARITHMETIC_NON_FINITE_H_

#include <cstdint>
#include <optional>
#include <span>

namespace starring {

// Index of the first value that is NaN or infinite.
std::optional<int64_t> FindNonFinite(std::span<const float> values);

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_NON_FINITE_H_
