#include "kernels/cuda/for_each.h"
#include "kernels/cuda/non_finite.h"

namespace starring::cuda {
namespace {

struct NonFiniteBody {
  const float* values;
  CudaStepResult* result;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const Pack<float, kWidth> in = LoadPack<kWidth>(values + i);
    for (int k = 0; k < kWidth; ++k) {
      if (!IsFinite(in.v[k])) result->non_finite_element = i + k;
    }
  }
};

}  // namespace

cudaError_t FindNonFinite(cudaStream_t stream, const float* values, int64_t count, CudaStepResult* result) {
  return ForEach(stream, count, NonFiniteBody{values, result}, values);
}

}  // namespace starring::cuda
