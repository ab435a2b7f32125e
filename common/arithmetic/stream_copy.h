// A copy to memory that other cores read next.
//
// A plain store to a cache line that another core has read waits until that core has given the line up, one line after
// the other: 26 ns each, 2.4 GB/s, measured between two far cores of an EPYC. Stores that bypass the caches do not
// wait: 27 GB/s or more, near or far.
//
// Thread safety: a pure function.
#ifndef STARRING_COMMON_ARITHMETIC_STREAM_COPY_H_
#define STARRING_COMMON_ARITHMETIC_STREAM_COPY_H_

#include <span>

namespace starring {

// Like std::copy; what is written is visible to whoever later synchronises with this thread. REQUIRES: the spans are
// equally long and do not overlap.
void StreamCopy(std::span<const float> from, std::span<float> to);

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_STREAM_COPY_H_
