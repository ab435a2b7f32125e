// What the operations of one CUDA device share.
//
// Thread safety: one thread.
#ifndef STARRING_KERNELS_CUDA_CUDA_CONTEXT_H_
#define STARRING_KERNELS_CUDA_CUDA_CONTEXT_H_

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/bias_gradient.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cudnn_interface.h"
#include "kernels/cuda/gpu_libraries.h"
#include "kernels/cuda/step_values.h"
#include "kernels/device.h"

namespace starring {

struct CudnnProducts;  // cuda_operations_cudnn.cc

struct CudaContext {
  // What NVIDIA advises for Hopper. One size for every product: the choice of an algorithm depends on it.
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  CudaWatch* watch = nullptr;  // of calls that may wait for the GPU; may be null
  cudaStream_t stream = nullptr;
  CublasLtLibrary cublaslt;
  cublasLtHandle_t cublaslt_handle = nullptr;
  CudnnLibrary cudnn;                    // if cudnn_handle
  cudnn::Handle cudnn_handle = nullptr;  // null: convolutions by kernels of our own
  // Of cuDNN, by the convolution's shape, chosen when the first layer of it is created: as CudaDevice::engines, and
  // what the layers share; null where there are none.
  std::map<std::string, std::string> engines;
  std::map<std::string, std::shared_ptr<const CudnnProducts>> products;
  CudaMath math = CudaMath::kFp32;
  int64_t columns_bytes_max = 0;
  // One of each for all operations: right only because all of them run on `stream`, one after the other. Operations on
  // a second stream, or on a branch of a graph, need their own.
  CudaMemory workspace;  // of matrix products
  CudaScratch scratch;
  CudaCounters counters;
  int64_t allocated_bytes = 0;             // by Allocate, since freed or not
  const CudaStepValues* bound = nullptr;   // device memory, or null
  CudaStepResult* bound_result = nullptr;  // likewise
  absl::Status first_error;

  // Device memory of an operation, or of a library for all of them.
  absl::StatusOr<CudaMemory> Allocate(int64_t size_bytes) {
    allocated_bytes += size_bytes;
    return CudaMemory::Create(size_bytes, watch);
  }

  // Operations return nothing: their first error waits here for Synchronize.
  void Keep(const absl::Status& status) { first_error.Update(status); }
  void Keep(cudaError_t error, const char* what) {
    if (error != cudaSuccess) Keep(CudaStatus(error, what));
  }
};

// What kernels, which know nothing of device.h, call it.
inline cuda::Mask MaskOf(Activation activation) {
  return activation == Activation::kRelu ? cuda::Mask::kRelu : cuda::Mask::kNone;
}

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_CONTEXT_H_
