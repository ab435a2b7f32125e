// The one door to cuDNN: its functions, loaded when a device is created that is to use it. By dlopen, as cuBLASLt is
// (cublaslt_library.h): here a machine without the library computes convolutions by kernels of ours.
//
// Thread safety: immutable after Load.
#ifndef STARRING_KERNELS_CUDA_CUDNN_LIBRARY_H_
#define STARRING_KERNELS_CUDA_CUDNN_LIBRARY_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn_interface.h"

namespace starring {

struct CudnnLibrary {
  // Unavailable with the loader's text where cuDNN 9 cannot be loaded: it is looked for as OpenGpuLibrary says. The
  // library stays loaded until the process ends.
  static absl::StatusOr<CudnnLibrary> Load(const std::vector<std::string>& folders);

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

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDNN_LIBRARY_H_
