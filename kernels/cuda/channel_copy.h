// Copies between a tensor and some channels of a wider one.
#ifndef STARRING_KERNELS_CUDA_CHANNEL_COPY_H_
#define STARRING_KERNELS_CUDA_CHANNEL_COPY_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

// The narrow tensor is channels [offset, offset + channels) of the wide one.
struct ChannelPart {
  int64_t pixels = 0, channels = 0, wide_channels = 0, offset = 0;
};

// wide = narrow, in the part; the other channels stay.
// Shapes:      narrow: (pixels, channels); wide: (pixels, wide_channels), float32.
// Writes:      the part of wide is overwritten (=).
// Launch:      256 threads a block, one thread per 4 neighbouring channels (or per element), no shared memory.
// Requires:    pixels * wide_channels < 2^31; 16-byte alignment and channels, wide_channels, offset % 4 == 0 for the
//              vector path, scalar path otherwise (both tested).
// Cost:        8 bytes moved per element: bandwidth-bound.
// Determinism: copies. Reference: itself, tolerance 0.
[[nodiscard]] cudaError_t CopyIntoChannels(cudaStream_t stream, const ChannelPart& part, const float* narrow,
                                           float* wide);

// narrow = the part of wide. All else as CopyIntoChannels.
[[nodiscard]] cudaError_t CopyFromChannels(cudaStream_t stream, const ChannelPart& part, const float* wide,
                                           float* narrow);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_CHANNEL_COPY_H_
