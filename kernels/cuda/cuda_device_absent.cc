// In a build without a CUDA toolkit.
#include "kernels/cuda/cuda_device.h"

namespace starring {
namespace {

absl::Status NoCuda() {
  return absl::UnavailableError(
      "this build has no CUDA: it was made without a CUDA toolkit of version 12 or newer in /usr/local/cuda or "
      "CUDA_HOME");
}

}  // namespace

absl::StatusOr<std::vector<CudaDeviceInfo>> FindCudaDevices() { return NoCuda(); }

absl::StatusOr<std::unique_ptr<CudaDevice>> CreateCudaDevice(const CudaDeviceOptions&) { return NoCuda(); }

}  // namespace starring
