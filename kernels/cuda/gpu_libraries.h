// The doors to NVIDIA's libraries: the functions of cuBLASLt, cuDNN and the driver, loaded when they are needed.
//
// They are loaded by dlopen, not by the linker: a program that needed libcublasLt.so to start would not start on a
// machine without a GPU, where that library (500 MB) is not installed. cuBLASLt is used without cuBLAS: it has every
// product that we compute, and takes workspace, algorithm and epilogue as arguments. A machine without cuDNN computes
// convolutions by kernels of ours.
//
// A library stays loaded until the process ends.
//
// Thread safety: immutable after Load.
#ifndef STARRING_KERNELS_CUDA_GPU_LIBRARIES_H_
#define STARRING_KERNELS_CUDA_GPU_LIBRARIES_H_

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn_interface.h"

namespace starring {

struct CublasLtLibrary {
  // OpenGpuLibrary (library_search.h) searches `folders`. Unavailable with the loader's text where cuBLASLt of the
  // headers' major version cannot be loaded.
  [[nodiscard]] static absl::StatusOr<CublasLtLibrary> Load(const std::vector<std::string>& folders);

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy = nullptr;
};

struct CudnnLibrary {
  // As CublasLtLibrary's, for cuDNN 9.
  [[nodiscard]] static absl::StatusOr<CudnnLibrary> Load(const std::vector<std::string>& folders);

  size_t (*get_version)() = nullptr;
  const char* (*get_error_string)(cudnn::Status status) = nullptr;
  void (*get_last_error_string)(char* message, size_t size_max) = nullptr;
  cudnn::Status (*create)(cudnn::Handle* handle) = nullptr;
  cudnn::Status (*destroy)(cudnn::Handle handle) = nullptr;
  cudnn::Status (*set_stream)(cudnn::Handle handle, cudaStream_t stream) = nullptr;
  cudnn::Status (*create_descriptor)(cudnn::DescriptorType type, cudnn::Descriptor* descriptor) = nullptr;
  cudnn::Status (*destroy_descriptor)(cudnn::Descriptor descriptor) = nullptr;
  cudnn::Status (*finalize)(cudnn::Descriptor descriptor) = nullptr;
  cudnn::Status (*set_attribute)(cudnn::Descriptor descriptor, cudnn::Attribute attribute, cudnn::AttributeType type,
                                 int64_t count, const void* elements) = nullptr;
  cudnn::Status (*get_attribute)(cudnn::Descriptor descriptor, cudnn::Attribute attribute, cudnn::AttributeType type,
                                 int64_t count_max, int64_t* count, void* elements) = nullptr;
  cudnn::Status (*execute)(cudnn::Handle handle, cudnn::Descriptor plan, cudnn::Descriptor variant_pack) = nullptr;
};

// The functions of the driver that the CUDA runtime lacks. They take the runtime's streams.
struct CudaDriverLibrary {
  // Unavailable, with the loader's text or the missing function's name.
  [[nodiscard]] static absl::StatusOr<CudaDriverLibrary> Load();

  decltype(&::cuDeviceGet) device_get = nullptr;
  decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&::cuGetErrorName) get_error_name = nullptr;
  decltype(&::cuGetErrorString) get_error_string = nullptr;
  decltype(&::cuStreamBatchMemOp) stream_batch_mem_op = nullptr;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_GPU_LIBRARIES_H_
