// The kernels of sums in GPU memory that several processes of a host map: their names and arguments, for host and
// device. A *place* is the memory of one rank for one array: first the contribution, and then the sum.
//
// libstarring.so has the kernels as an image (gpu_image.h), and launches them by the driver's interface. So the names
// are those of C. Each kernel takes one argument, a struct below.
//
// Elements and their sums are those of common/reduce/arrays/element_sum.h, whose order of types the tables have.
#ifndef STARRING_WORKER_PYTHON_GPU_GPU_SUMS_H_
#define STARRING_WORKER_PYTHON_GPU_GPU_SUMS_H_

#include <cstdint>

namespace starring {

// As many GPUs as one box has.
inline constexpr int kGpuRanksMax = 8;
// The threads of a block.
inline constexpr int kGpuSumThreads = 256;
// 32 blocks fill a link between two GPUs, and leave multiprocessors to the model.
inline constexpr int kGpuSumBlocksMax = 32;
// Places are aligned to it, and the kernels' vector accesses need 16 bytes.
inline constexpr int64_t kGpuPlaceAlignment = 256;

// places[r][e] = (the sum of all places[r][e], as a tree) / divisor, for all ranks r and begin <= e < end.
// Shapes:      places: `rank_count` arrays of at least `end` elements.
// Writes:      the places are overwritten (=).
// Launch:      kGpuSumThreads a block, any number of blocks, which stride over the range; no shared memory.
// Requires:    places aligned to kGpuPlaceAlignment. No process reads or writes these elements until it has ended.
// Cost:        an element is read and written once for each rank, over the link but for one: bound by the link.
// Determinism: bitwise, but for the bits of a NaN. Reference: SumContributions of element_sum.h, tolerance 0.
struct GpuStarSum {
  int64_t begin = 0, end = 0;
  void* places[kGpuRanksMax] = {};
  int32_t rank_count = 0;  // 2 to kGpuRanksMax
  float divisor = 1.0f;
};
inline constexpr const char* kGpuStarSumNames[] = {"starring_star_sum_float32", "starring_star_sum_bfloat16",
                                                   "starring_star_sum_float16"};

// The elements of one ring chunk of each reduction block of an array (common/arithmetic/reduction_order.h): those of
// the whole blocks, and then those of the last one, if it is shorter.
struct GpuRingChunk {
  int64_t count = 0;           // of all blocks
  int64_t whole_count = 0;     // of the whole blocks
  int64_t block_elements = 0;  // of a whole block
  int64_t first = 0;           // where the chunk begins in a whole block
  int64_t last_begin = 0;      // where it begins in the last block, counted from the array's begin
  int32_t shift = 0;           // a chunk of a whole block has 1 << shift elements, at least 8
};

// A hop of the ring. For each element e of the chunk, s = what comes from the left + own[e]. If there is a `partial`,
// partial[e] = s; otherwise own[e] = s / divisor.
// Shapes:      whole arrays.
// Writes:      `partial` or `own` (=). `partial` may be `own`, if that has float32.
// Launch:      as GpuStarSum.
// Requires:    arrays aligned to kGpuPlaceAlignment. No process writes what is read, or uses what is written.
// Cost:        an element of the left is read over the link; `own` is read, and one array is written.
// Determinism: bitwise, but for the bits of a NaN. Reference: AddElements and Finish of element_sum.h, tolerance 0.
struct GpuRingAdd {
  GpuRingChunk chunk;
  const void* left_elements = nullptr;  // the left neighbour's contribution, at the first hop
  const float* left_partial = nullptr;  // its partial sum, at the others
  void* own = nullptr;
  float* partial = nullptr;
  float divisor = 1.0f;
};
inline constexpr const char* kGpuRingAddNames[] = {"starring_ring_add_float32", "starring_ring_add_bfloat16",
                                                   "starring_ring_add_float16"};

// own[e] = left[e], for each element e of the chunk. Launch and requirements as for GpuRingAdd.
struct GpuRingCopy {
  GpuRingChunk chunk;
  const void* left = nullptr;
  void* own = nullptr;
};
inline constexpr const char* kGpuRingCopyNames[] = {"starring_ring_copy_32", "starring_ring_copy_16",
                                                    "starring_ring_copy_16"};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GPU_GPU_SUMS_H_
