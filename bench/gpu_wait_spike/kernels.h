// Kernels that wait for a word, write one, note the time, or keep the GPU busy.
//
// Each function enqueues on `stream` and returns the error of the launch. Pointers are valid on the device: memory of
// the device, of another process's mapped allocation, or of the host, registered. Determinism: none is promised, since
// the kernels show times; patterns are exact.
#ifndef STARRING_BENCH_GPU_WAIT_SPIKE_KERNELS_H_
#define STARRING_BENCH_GPU_WAIT_SPIKE_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::gpu_wait {

// *stamp = nanoseconds of %globaltimer, which all processes on the GPU share. One thread.
[[nodiscard]] cudaError_t Stamp(cudaStream_t stream, uint64_t* stamp);

// *word = value, after all that the stream wrote before, for every process and the host. One thread.
[[nodiscard]] cudaError_t StoreWord(cudaStream_t stream, uint64_t* word, uint64_t value);

struct Spin {
  const uint64_t* word = nullptr;
  uint64_t value = 0;
  const uint64_t* abort_word = nullptr;  // not 0: no kernel waits any longer
  uint64_t* gave_up = nullptr;           // memory of this process; set at the limit. Later kernels then do not wait
  uint64_t limit_ns = 0;
};
// Ends when *word == value, at the limit, or when *abort_word != 0. One warp, whose first lane reads the word.
[[nodiscard]] cudaError_t SpinUntilEqual(cudaStream_t stream, const Spin& spin);

struct Pattern {
  int64_t count = 0;  // of words
  uint32_t seed = 0;  // word i is i * 2654435761 + seed
};
// words = the pattern.
[[nodiscard]] cudaError_t FillPattern(cudaStream_t stream, const Pattern& pattern, uint32_t* words);
// *differences += the number of words that are not the pattern's.
[[nodiscard]] cudaError_t CountDifferences(cudaStream_t stream, const Pattern& pattern, const uint32_t* words,
                                           unsigned* differences);

// 8 blocks of 256 threads for each of `multiprocessors`, each thread with 8 additions and multiplications for each of
// `iterations`. *sink stays as it is.
struct Computation {
  int multiprocessors = 0;
  int64_t iterations = 0;
};
[[nodiscard]] cudaError_t Compute(cudaStream_t stream, const Computation& computation, float* sink);

}  // namespace starring::gpu_wait

#endif  // STARRING_BENCH_GPU_WAIT_SPIKE_KERNELS_H_
