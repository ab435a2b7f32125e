// Two passes over an array of floats that are as fast as memory.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_ARITHMETIC_ARRAY_PASSES_H_
#define STARRING_COMMON_ARITHMETIC_ARRAY_PASSES_H_

#include <cstdint>
#include <optional>
#include <span>

namespace starring {

// A copy to memory that another core reads next. Like std::copy; a thread that later synchronises with this one sees
// what was written. REQUIRES: the spans are equally long and do not overlap.
//
// A plain store to a cache line that another core has read waits until that core has given the line up, one line after
// the other: 26 ns each, 2.4 GB/s, measured between two far cores of an EPYC. The stores used here bypass the caches
// and do not wait: 27 GB/s or more, near or far.
void StreamCopy(std::span<const float> from, std::span<float> to);

// The index of the first value that is NaN or infinite; empty if all values are finite.
std::optional<int64_t> FindNonFinite(std::span<const float> values);

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_ARRAY_PASSES_H_
