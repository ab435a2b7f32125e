// The kernels of gpu_sums.h as the driver loads them: a fat binary for GPUs of compute capability 8.0 and newer. The
// build makes the source of this header by nvcc. Without nvcc the image is empty.
#ifndef STARRING_WORKER_PYTHON_GPU_GPU_IMAGE_H_
#define STARRING_WORKER_PYTHON_GPU_GPU_IMAGE_H_

#include <span>

namespace starring {

std::span<const unsigned char> GpuImage();

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GPU_GPU_IMAGE_H_
