#include "kernels/cuda/cuda_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace starring {

absl::Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  // Too little memory is told apart: a smaller batch, or another way between the ranks, needs less.
  const auto code =
      error == cudaErrorMemoryAllocation ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal;
  return absl::Status(
      code, absl::StrCat(what, ": ", cudaGetErrorString(error), " (CUDA error ", static_cast<int>(error), ")"));
}

absl::StatusOr<CudaMemory> CudaMemory::Create(int64_t size_bytes, CudaWatch* watch) {
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a buffer of ", size_bytes, " bytes: must be at least 0"));
  }
  void* data = nullptr;
  // cudaMalloc and cudaFree may wait for work on the GPU, so they too do not return when it hangs.
  const CudaWatch::Call call(watch, "allocating GPU memory");
  // At least one byte: cudaMalloc of none returns a null pointer, which callers would take for no memory.
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(size_bytes, 1)));
  // This error is told apart from all others, because the way out is another: a smaller batch.
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which the next launch would report otherwise
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return absl::ResourceExhaustedError(absl::StrCat("no GPU memory for a buffer of ", size_bytes,
                                                     " bytes: ", free_bytes, " of ", total_bytes, " are free"));
  }
  RETURN_IF_ERROR(CudaStatus(error, "cudaMalloc"));
  CudaMemory memory;
  memory.data_ = {data, Free{watch}};
  memory.size_bytes_ = size_bytes;
  return memory;
}

absl::StatusOr<PinnedMemory> PinnedMemory::Create(int64_t size_bytes, CudaWatch* watch) {
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a pinned buffer of ", size_bytes, " bytes: must be at least 0"));
  }
  void* data = nullptr;
  const CudaWatch::Call call(watch, "allocating pinned memory");
  const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(std::max<int64_t>(size_bytes, 1)));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // as above
    return absl::ResourceExhaustedError(absl::StrCat("no pinned host memory for a buffer of ", size_bytes, " bytes"));
  }
  RETURN_IF_ERROR(CudaStatus(error, "cudaMallocHost"));
  PinnedMemory memory;
  memory.data_ = {data, Free{watch}};
  memory.size_bytes_ = size_bytes;
  return memory;
}

// Blocks that were outgrown count too: they stay allocated.
int64_t CudaScratch::size_bytes() const {
  int64_t sum = 0;
  for (const CudaMemory& block : blocks_) sum += block.size_bytes();
  return sum;
}

absl::Status CudaScratch::Reserve(int64_t size_bytes) {
  const int64_t have_bytes = blocks_.empty() ? 0 : blocks_.back().size_bytes();
  // The memory never shrinks, so every operation that has reserved finds at least the size that it asked for.
  if (size_bytes <= have_bytes) return absl::OkStatus();
  ASSIGN_OR_RETURN(CudaMemory block, CudaMemory::Create(size_bytes, watch_), "temporary memory");
  blocks_.push_back(std::move(block));
  return absl::OkStatus();
}

// The memset is on the stream of the operations, so it is done before the first of them.
absl::Status CudaCounters::Reserve(cudaStream_t stream, int64_t count) {
  // A kernel resets its counters itself (IsLastBlock), so this memset is the only one.
  constexpr int64_t kBytesMin = 4096;  // enough for most operations, so that few of them allocate
  const int64_t have_bytes = blocks_.empty() ? 0 : blocks_.back().size_bytes();
  const int64_t size_bytes = static_cast<int64_t>(sizeof(unsigned)) * count;
  if (size_bytes <= have_bytes) return absl::OkStatus();
  ASSIGN_OR_RETURN(CudaMemory block, CudaMemory::Create(std::max(size_bytes, kBytesMin), watch_), "counters");
  RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(block.data(), 0, static_cast<size_t>(block.size_bytes()), stream), "zeroing"));
  blocks_.push_back(std::move(block));
  return absl::OkStatus();
}

}  // namespace starring
