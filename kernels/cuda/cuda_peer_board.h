// CudaPeerBoard of cuda_device.h: waits are operations on memory of the driver's interface (cuStreamBatchMemOp), which
// the CUDA runtime lacks, so that no kernel has to spin.
#ifndef STARRING_KERNELS_CUDA_CUDA_PEER_BOARD_H_
#define STARRING_KERNELS_CUDA_CUDA_PEER_BOARD_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_watch.h"

namespace starring {

// CudaDevice::MapBoard for the GPU `ordinal`, which is the current one.
[[nodiscard]] absl::StatusOr<std::unique_ptr<CudaPeerBoard>> MapCudaPeerBoard(int ordinal, std::span<std::byte> memory,
                                                                              CudaWatch* watch);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_PEER_BOARD_H_
