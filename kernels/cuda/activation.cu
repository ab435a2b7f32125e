#include "kernels/cuda/activation.h"
#include "kernels/cuda/launch.h"

namespace starring::cuda {
namespace {

// The function is a constant of the kernel: a switch inside would cost a branch for every element. So each function has
// two kernels.
template <ActivationFunction function>
struct ForwardBody {
  const float* x;
  float* y;
  float parameter;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    Pack<float, kWidth> v = LoadPack<kWidth>(x + i);
    for (float& e : v.v) e = activation::ValueAt<function>(e, parameter);
    StorePack(v, y + i);
  }
};

template <ActivationFunction function>
struct BackwardBody {
  const float* at;
  const float* dy;
  float* dx;
  float parameter;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const Pack<float, kWidth> from = LoadPack<kWidth>(at + i);
    // dx may alias dy: a thread has loaded its elements before it stores any, and no other thread touches them.
    Pack<float, kWidth> v = LoadPack<kWidth>(dy + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v.v[k] *= activation::SlopeAt<function>(from.v[k], parameter);
    StorePack(v, dx + i);
  }
};

// Calls visit.template operator()<function>() for the function that is known at run time.
template <typename Visit>
cudaError_t WithFunction(ActivationFunction function, const Visit& visit) {
  switch (function) {
    case ActivationFunction::kRelu6:
      return visit.template operator()<ActivationFunction::kRelu6>();
    case ActivationFunction::kSigmoid:
      return visit.template operator()<ActivationFunction::kSigmoid>();
    case ActivationFunction::kTanh:
      return visit.template operator()<ActivationFunction::kTanh>();
    case ActivationFunction::kGelu:
      return visit.template operator()<ActivationFunction::kGelu>();
    case ActivationFunction::kGeluTanh:
      return visit.template operator()<ActivationFunction::kGeluTanh>();
    case ActivationFunction::kSilu:
      return visit.template operator()<ActivationFunction::kSilu>();
    case ActivationFunction::kScale:
      return visit.template operator()<ActivationFunction::kScale>();
    case ActivationFunction::kLeakyRelu:
      return visit.template operator()<ActivationFunction::kLeakyRelu>();
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t ActivationForward(cudaStream_t stream, const ActivationArgs& g, const float* x, float* y) {
  return WithFunction(g.function, [&]<ActivationFunction function>() {
    return ForEach(stream, g.count, ForwardBody<function>{x, y, g.parameter}, x, y);
  });
}

cudaError_t ActivationBackward(cudaStream_t stream, const ActivationArgs& g, const float* at, const float* dy,
                               float* dx) {
  return WithFunction(g.function, [&]<ActivationFunction function>() {
    return ForEach(stream, g.count, BackwardBody<function>{at, dy, dx, g.parameter}, at, dy, dx);
  });
}

}  // namespace starring::cuda
