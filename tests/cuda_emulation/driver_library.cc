#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/gpu_libraries.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {

absl::StatusOr<CudaDriverLibrary> CudaDriverLibrary::Load() {
  if (cuda_emulation::Gpu().driver_version == 0) {
    return absl::UnavailableError("the CUDA driver cannot be loaded: the emulated machine has none");
  }
  return CudaDriverLibrary{.device_get = cuDeviceGet,
                           .device_get_attribute = cuDeviceGetAttribute,
                           .get_error_name = cuGetErrorName,
                           .get_error_string = cuGetErrorString,
                           .stream_batch_mem_op = cuStreamBatchMemOp};
}

}  // namespace starring
