// Copies between a tensor and some channels of a wider one.
#ifndef STARRING_KERNELS_CUDA_CHANNEL_COPY_H_
#define STARRING_KERNELS_CUDA_CHANNEL_COPY_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/element.h"

namespace starring::cuda {

// The narrow tensor is channels [offset, offset + channels) of the wide one.
struct ChannelPart {
  int64_t pixels = 0, channels = 0, wide_channels = 0, offset = 0;
};

// wide = narrow, in the part; the other channels stay.
// Shapes:      narrow: (pixels, channels); wide: (pixels, wide_channels), of the same elements.
// Writes:      the part of wide is overwritten (=).
// Launch:      256 threads a block, one thread per 16 bytes of neighbouring channels (or per element), no shared
//              memory.
// Requires:    pixels * wide_channels < 2^31; 16-byte alignment and channels, wide_channels and offset in whole packs
//              for the vector path, scalar path otherwise (both tested).
// Cost:        2 elements moved for each: bandwidth-bound.
// Determinism: copies. Reference: itself, tolerance 0.
[[nodiscard]] cudaError_t CopyIntoChannels(cudaStream_t stream, const ChannelPart& part, ConstElements narrow,
                                           Elements wide);

// narrow = the part of wide. All else as CopyIntoChannels.
[[nodiscard]] cudaError_t CopyFromChannels(cudaStream_t stream, const ChannelPart& part, ConstElements wide,
                                           Elements narrow);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_CHANNEL_COPY_H_
