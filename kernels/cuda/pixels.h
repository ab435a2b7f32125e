// uint8 pixels, as the loader fills them, to normalised float32, on arrival.
#ifndef STARRING_KERNELS_CUDA_PIXELS_H_
#define STARRING_KERNELS_CUDA_PIXELS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

struct PixelArgs {
  int64_t count = 0, channels = 0;  // count < 2^31
  const uint8_t* pixels = nullptr;
  const float* offset = nullptr;
  const float* scale = nullptr;
  float* out = nullptr;
};

// out = (pixel - offset[channel]) * scale[channel]: the formula of worker/data/pixel_normalizer.h.
// Shapes:      pixels, out: (count), channels interleaved, beginning with channel 0; offset, scale: (channels).
// Writes:      out is overwritten (=).
// Launch:      256 threads a block, one thread per 4 values, no shared memory.
// Requires:    4-byte alignment of pixels and 16-byte of out for the vector path, scalar path otherwise (both tested).
// Cost:        5 bytes moved per value: bandwidth-bound.
// Determinism: bitwise. Reference: PixelNormalizer, tolerance 0.
cudaError_t NormalizePixels(cudaStream_t stream, const PixelArgs& args);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_PIXELS_H_
