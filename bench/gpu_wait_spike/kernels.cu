#include "bench/gpu_wait_spike/kernels.h"
#include "kernels/cuda/system_scope.h"

namespace starring::gpu_wait {
namespace {

using cuda::GlobalTimerNs;
using cuda::LoadAcquireSystem;
using cuda::StoreReleaseSystem;

constexpr int kThreads = 256, kWarp = 32;
constexpr int kBlocksPerMultiprocessor = 8;
// The abort word is in the host's memory: reading it costs a round trip over PCIe, so a wait for a word of the device's
// memory reads it rarely.
constexpr unsigned kPollsPerAbortCheck = 64;
constexpr unsigned kSleepNs = 20;

__global__ void StampKernel(uint64_t* stamp) { *stamp = GlobalTimerNs(); }

__global__ void StoreWordKernel(uint64_t* word, uint64_t value) {
  __threadfence_system();
  StoreReleaseSystem(word, value);
}

__global__ void SpinKernel(Spin spin) {
  if (threadIdx.x == 0 && LoadAcquireSystem(spin.gave_up) == 0) {
    const uint64_t begin = GlobalTimerNs();
    for (unsigned polls = 0; LoadAcquireSystem(spin.word) != spin.value; ++polls) {
      if (polls % kPollsPerAbortCheck == kPollsPerAbortCheck - 1 &&
          (LoadAcquireSystem(spin.abort_word) != 0 || GlobalTimerNs() - begin > spin.limit_ns)) {
        StoreReleaseSystem(spin.gave_up, 1);
        break;
      }
      __nanosleep(kSleepNs);
    }
  }
  __syncwarp();
}

// The factor is 2^32 divided by the golden ratio (Knuth's multiplicative hash), so neighbouring words differ in many
// bits.
__device__ uint32_t PatternWord(int64_t i, uint32_t seed) { return static_cast<uint32_t>(i) * 2654435761u + seed; }

__global__ void FillKernel(Pattern pattern, uint32_t* words) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < pattern.count) words[i] = PatternWord(i, pattern.seed);
}

__global__ void CountKernel(Pattern pattern, const uint32_t* words, unsigned* differences) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  // Only a wrong word costs an atomic addition.
  if (i < pattern.count && words[i] != PatternWord(i, pattern.seed)) atomicAdd(differences, 1u);
}

__global__ void __launch_bounds__(kThreads) ComputeKernel(int64_t iterations, float* sink) {
  float values[8];
  for (int j = 0; j < 8; ++j) values[j] = static_cast<float>(threadIdx.x + j);
  // x / 2 + 1 tends to 2, so no value overflows or vanishes.
  for (int64_t i = 0; i < iterations; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = values[j] * 0.5f + 1.0f;
  }
  float sum = 0;
  for (int j = 0; j < 8; ++j) sum += values[j];
  if (sum < 0) *sink = sum;  // never: no value is below 0. Without the store nothing would be computed
}

unsigned Blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t Stamp(cudaStream_t stream, uint64_t* stamp) {
  StampKernel<<<1, 1, 0, stream>>>(stamp);
  return cudaGetLastError();
}

cudaError_t StoreWord(cudaStream_t stream, uint64_t* word, uint64_t value) {
  StoreWordKernel<<<1, 1, 0, stream>>>(word, value);
  return cudaGetLastError();
}

cudaError_t SpinUntilEqual(cudaStream_t stream, const Spin& spin) {
  SpinKernel<<<1, kWarp, 0, stream>>>(spin);
  return cudaGetLastError();
}

cudaError_t FillPattern(cudaStream_t stream, const Pattern& pattern, uint32_t* words) {
  FillKernel<<<Blocks(pattern.count), kThreads, 0, stream>>>(pattern, words);
  return cudaGetLastError();
}

cudaError_t CountDifferences(cudaStream_t stream, const Pattern& pattern, const uint32_t* words,
                             unsigned* differences) {
  CountKernel<<<Blocks(pattern.count), kThreads, 0, stream>>>(pattern, words, differences);
  return cudaGetLastError();
}

cudaError_t Compute(cudaStream_t stream, const Computation& computation, float* sink) {
  const auto blocks = static_cast<unsigned>(computation.multiprocessors * kBlocksPerMultiprocessor);
  ComputeKernel<<<blocks, kThreads, 0, stream>>>(computation.iterations, sink);
  return cudaGetLastError();
}

}  // namespace starring::gpu_wait
