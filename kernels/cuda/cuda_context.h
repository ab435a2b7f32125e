// The state that the operations of one CUDA device share: its stream, libraries, temporary memory and first error.
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
  // The size that NVIDIA advises for Hopper. It is one size for every product, because the choice of an algorithm, and
  // so the bits, depends on it.
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  CudaWatch* watch = nullptr;  // watches calls that may wait for the GPU; may be null
  cudaStream_t stream = nullptr;
  CublasLtLibrary cublaslt;
  cublasLtHandle_t cublaslt_handle = nullptr;
  CudnnLibrary cudnn;                    // if cudnn_handle
  cudnn::Handle cudnn_handle = nullptr;  // null: convolutions by kernels of our own
  // cuDNN's choices, by the convolution's shape, made when the first layer of that shape is created: the text for
  // CudaDevice::engines, and the products that layers of the shape share; null where cuDNN has no engine.
  std::map<std::string, std::string> engines;
  std::map<std::string, std::shared_ptr<const CudnnProducts>> products;
  CudaMath math = CudaMath::kFp32;
  int64_t columns_bytes_max = 0;
  // One of each for all operations. That is right only because all of them run on `stream`, one after another.
  // Operations on a second stream, or on a branch of a graph, would write to the same memory at the same time.
  CudaMemory workspace;  // for matrix products
  CudaScratch scratch;
  CudaCounters counters;
  int64_t allocated_bytes = 0;             // by Allocate in total, including memory that was freed since
  const CudaStepValues* bound = nullptr;   // CudaDevice::BindStepValues; device memory, or null
  CudaStepResult* bound_result = nullptr;  // CudaDevice::BindStepResult; device memory, or null
  absl::Status first_error;

  // Device memory for an operation, or for a library that all of them use.
  absl::StatusOr<CudaMemory> Allocate(int64_t size_bytes) {
    allocated_bytes += size_bytes;
    return CudaMemory::Create(size_bytes, watch);
  }

  // Operations return nothing. Their first error is kept here until Synchronize returns it.
  void Keep(const absl::Status& status) { first_error.Update(status); }
  void Keep(cudaError_t error, const char* what) {
    if (error != cudaSuccess) Keep(CudaStatus(error, what));
  }
};

// The kernels' word for an activation: their headers do not include device.h, which nvcc would then have to compile.
inline cuda::Mask MaskOf(Activation activation) {
  return activation == Activation::kRelu ? cuda::Mask::kRelu : cuda::Mask::kNone;
}

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_CONTEXT_H_
