#include "kernels/cuda/pinned_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/cuda/cuda_memory.h"

namespace starring {

absl::StatusOr<PinnedMemory> PinnedMemory::Create(int64_t size_bytes, CudaWatch* watch) {
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a pinned buffer of ", size_bytes, " bytes: must be at least 0"));
  }
  void* data = nullptr;
  const CudaWatch::Call call(watch, "allocating pinned memory");
  const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(std::max<int64_t>(size_bytes, 1)));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told here, not by a later call
    return absl::ResourceExhaustedError(absl::StrCat("no pinned host memory for a buffer of ", size_bytes, " bytes"));
  }
  RETURN_IF_ERROR(CudaStatus(error, "cudaMallocHost"));
  PinnedMemory memory;
  memory.data_ = {data, Free{watch}};
  memory.size_bytes_ = size_bytes;
  return memory;
}

}  // namespace starring
