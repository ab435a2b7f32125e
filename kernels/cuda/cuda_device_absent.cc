// The functions of cuda_device.h in a build without a CUDA toolkit. A machine with a driver gets Unavailable, because
// its GPU stays unused; a machine without one NotFound.
#include <unistd.h>

#include "absl/strings/string_view.h"
#include "kernels/cuda/cuda_device.h"

namespace starring {
namespace {

absl::Status NoCuda() {
  constexpr absl::string_view kWhy =
      "this build has no CUDA: it was made without a CUDA toolkit of version 12 or newer in /usr/local/cuda or "
      "CUDA_HOME";
  // The driver's own device file, which is there without any library of CUDA. The two codes decide whether
  // --device=auto says why it computes on the CPU.
  const bool is_driver_here = access("/dev/nvidiactl", F_OK) == 0;
  return is_driver_here ? absl::UnavailableError(kWhy) : absl::NotFoundError(kWhy);
}

}  // namespace

absl::StatusOr<std::vector<CudaDeviceInfo>> FindCudaDevices(CudaWatch*) { return NoCuda(); }

absl::Status MakeCudaDeviceCurrent(int, CudaWatch*) { return NoCuda(); }

absl::StatusOr<std::unique_ptr<CudaDevice>> CreateCudaDevice(const CudaDeviceOptions&) { return NoCuda(); }

}  // namespace starring
