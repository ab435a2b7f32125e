// The values of a data set, uint8 pixels or float32 numbers, to normalised elements: for a batch that the loader
// filled, or one gathered from a data set on the GPU.
#ifndef STARRING_KERNELS_CUDA_PIXELS_H_
#define STARRING_KERNELS_CUDA_PIXELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/step_values.h"
#include "kernels/element.h"

namespace starring::cuda {

struct NormalizeArgs {
  int64_t count = 0, channels = 0;  // count < 2^31
  int64_t value_bytes = 1;          // 1: uint8, 4: float32
  const void* values = nullptr;
  const float* offset = nullptr;
  const float* scale = nullptr;
  Elements out;
};

// out = (value - offset[channel]) * scale[channel]: the formula of worker/data/normalization.h.
// Shapes:      values, out: (count), channels interleaved, beginning with channel 0; offset, scale: (channels).
// Writes:      out is overwritten (=).
// Launch:      256 threads a block, one thread per 4 values, no shared memory.
// Requires:    alignment of values to four of them and 16-byte of out for the vector path, scalar path otherwise (both
//              tested).
// Cost:        a value read and an element written for each: bandwidth-bound.
// Determinism: bitwise. Reference: Normalizer, tolerance 0.
[[nodiscard]] cudaError_t NormalizeValues(cudaStream_t stream, const NormalizeArgs& args);

// Samples of a data set on the GPU, and where they go.
struct GatherArgs {
  int64_t batch = 0;
  int64_t height = 0, width = 0, channels = 0;  // of an image; batch * height * width * channels < 2^31
  const uint32_t* samples = nullptr;            // (batch): numbers in the data set
  int64_t value_bytes = 1;                      // as in NormalizeArgs
  const void* images = nullptr;                 // the data set's
  const uint16_t* labels = nullptr;             // likewise; null with targets
  const float* targets = nullptr;               // likewise; null with labels
  int64_t target_values = 0;                    // of a sample; 0 with labels
  int64_t padding = 0;  // if not 0, images are cropped and flipped as by worker/data/crop_flip.h
  uint64_t seed = 0;
  // epoch, unless `bound`, in device memory, has it when the kernel runs.
  CudaStepValues values;
  const CudaStepValues* bound = nullptr;
  const float* offset = nullptr;  // (channels)
  const float* scale = nullptr;   // (channels)
  Elements out_images;
  int32_t* out_labels = nullptr;
  float* out_targets = nullptr;
};

// out_images[b] = (crop and flip of images[samples[b]] - offset[channel]) * scale[channel], out_labels[b] =
// labels[samples[b]], or out_targets[b] = targets[samples[b]]. Padding is pixels of value 0, which are normalised too.
// Shapes:      images: (count, height, width, channels); labels: (count); targets: (count, target_values).
//              out_images: (batch, height, width, channels); out_labels: (batch); out_targets: (batch, target_values).
// Writes:      the outputs are overwritten (=).
// Launch:      256 threads a block, one block per piece of an image, one thread per 4 values, no shared memory.
// Requires:    16-byte alignment of out_images and 4 | height * width * channels for stores of packs, single ones
//              otherwise (both tested). Values are read one by one, because a crop may begin at any address.
// Cost:        a value read, an element written and, with crops, some 30 integer instructions: bandwidth-bound.
// Determinism: bitwise. Reference: DrawCropFlip, ApplyCropFlip and Normalizer, tolerance 0.
[[nodiscard]] cudaError_t GatherSamples(cudaStream_t stream, const GatherArgs& args);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_PIXELS_H_
