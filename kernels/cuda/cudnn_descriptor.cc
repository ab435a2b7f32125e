#include "kernels/cuda/cudnn_descriptor.h"

#include "absl/strings/str_cat.h"

namespace starring {

std::string CudnnVersion(const CudnnLibrary& library) {
  const size_t version = library.get_version();
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status CudnnStatus(const CudnnLibrary& library, cudnn::Status status, const char* what) {
  if (status == cudnn::Status::kSuccess) return absl::OkStatus();
  // cuDNN keeps the reason of its last error, which says more than the status.
  char why[256] = {};
  library.get_last_error_string(why, sizeof(why));
  const std::string text = absl::StrCat(what, ": ", library.get_error_string(status), " (cuDNN status ",
                                        static_cast<int>(status), ")", why[0] == '\0' ? "" : ": ", why);
  // Two codes, because a caller may try the next engine after a refusal, but not after an error of the library.
  return cudnn::IsRefusal(status) ? absl::UnimplementedError(text) : absl::InternalError(text);
}

CudnnDescriptor::CudnnDescriptor(const CudnnLibrary* library, cudnn::DescriptorType type) : library_(library) {
  status_ = CudnnStatus(*library_, library_->create_descriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}

// The moved descriptor is null, so that its destructor does not destroy the one that moved.
CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : library_(other.library_),
      descriptor_(std::exchange(other.descriptor_, nullptr)),
      status_(std::move(other.status_)) {}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) library_->destroy_descriptor(descriptor_);
}

absl::Status CudnnDescriptor::Finalize() {
  // This is the first error of the constructor or of Set, whose callers check nothing.
  RETURN_IF_ERROR(status_);
  return CudnnStatus(*library_, library_->finalize(descriptor_), "cudnnBackendFinalize");
}

absl::StatusOr<std::vector<CudnnDescriptor>> CudnnDescriptor::GetDescriptors(cudnn::Attribute attribute,
                                                                             cudnn::DescriptorType type,
                                                                             int64_t count_max) const {
  // cuDNN writes into descriptors that exist. Those that it does not fill are destroyed again at the end.
  std::vector<CudnnDescriptor> descriptors;
  std::vector<cudnn::Descriptor> elements;
  for (int64_t i = 0; i < count_max; ++i) {
    descriptors.emplace_back(library_, type);
    RETURN_IF_ERROR(descriptors.back().status_);
    elements.push_back(descriptors.back().get());
  }
  int64_t count = 0;
  RETURN_IF_ERROR(CudnnStatus(*library_,
                              library_->get_attribute(descriptor_, attribute, cudnn::AttributeType::kDescriptor,
                                                      count_max, &count, elements.data()),
                              "cudnnBackendGetAttribute"));
  // `count` may also be larger than the array: it is how many cuDNN has.
  while (std::ssize(descriptors) > count) descriptors.pop_back();
  return descriptors;
}

}  // namespace starring
