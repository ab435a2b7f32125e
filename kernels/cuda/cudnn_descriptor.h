// A descriptor of cuDNN's backend, owned. It is created, given its attributes, finalized, and then only read.
//
//   CudnnDescriptor tensor(&library, cudnn::DescriptorType::kTensor);
//   tensor.Set<int64_t>(cudnn::Attribute::kTensorUniqueId, cudnn::AttributeType::kInt64, {1});
//   RETURN_IF_ERROR(tensor.Finalize());
//
// Thread safety: one thread.
#ifndef STARRING_KERNELS_CUDA_CUDNN_DESCRIPTOR_H_
#define STARRING_KERNELS_CUDA_CUDNN_DESCRIPTOR_H_

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "kernels/cuda/gpu_libraries.h"

namespace starring {

// "9.19.0".
std::string CudnnVersion(const CudnnLibrary& library);
// OK for kSuccess. Otherwise the library's own text: Unimplemented where cuDNN refuses the request, Internal for all
// other errors.
absl::Status CudnnStatus(const CudnnLibrary& library, cudnn::Status status, const char* what);

class CudnnDescriptor {
 public:
  // `library` outlives the result. Finalize returns an error of the constructor or of Set.
  CudnnDescriptor(const CudnnLibrary* library, cudnn::DescriptorType type);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;
  ~CudnnDescriptor();

  template <typename T>
  void Set(cudnn::Attribute attribute, cudnn::AttributeType type, std::span<const T> elements) {
    if (!status_.ok()) return;
    status_ = CudnnStatus(*library_,
                          library_->set_attribute(descriptor_, attribute, type, std::ssize(elements), elements.data()),
                          "cudnnBackendSetAttribute");
  }
  template <typename T>
  void Set(cudnn::Attribute attribute, cudnn::AttributeType type, std::initializer_list<T> elements) {
    Set(attribute, type, std::span<const T>(elements.begin(), elements.size()));
  }
  // The attribute's one element is another descriptor.
  void SetDescriptor(cudnn::Attribute attribute, const CudnnDescriptor& other) {
    Set<cudnn::Descriptor>(attribute, cudnn::AttributeType::kDescriptor, {other.get()});
  }

  absl::Status Finalize();

  // At most `count_max` elements of a finalized descriptor.
  template <typename T>
  absl::StatusOr<std::vector<T>> Get(cudnn::Attribute attribute, cudnn::AttributeType type, int64_t count_max) const {
    std::vector<T> elements(static_cast<size_t>(count_max));
    int64_t count = 0;
    RETURN_IF_ERROR(CudnnStatus(
        *library_, library_->get_attribute(descriptor_, attribute, type, count_max, &count, elements.data()),
        "cudnnBackendGetAttribute"));
    elements.resize(static_cast<size_t>(count < count_max ? count : count_max));
    return elements;
  }
  // Likewise. cuDNN fills in descriptors that the caller made: `count_max` of `type` are made for that.
  absl::StatusOr<std::vector<CudnnDescriptor>> GetDescriptors(cudnn::Attribute attribute, cudnn::DescriptorType type,
                                                              int64_t count_max) const;

  cudnn::Descriptor get() const { return descriptor_; }

 private:
  const CudnnLibrary* const library_;
  cudnn::Descriptor descriptor_ = nullptr;
  absl::Status status_;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDNN_DESCRIPTOR_H_
