#include "kernels/cuda/activation.h"
#include "kernels/cuda/bfloat16.h"
#include "kernels/cuda/launch.h"

namespace starring::cuda {
namespace {

// The function is a constant of the kernel: a switch inside would cost a branch for every element. So each function has
// two kernels.
template <ActivationFunction function, typename T>
struct ForwardBody {
  const T* x;
  T* y;
  float parameter;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    Pack<float, kWidth> v = LoadFloats<kWidth>(x + i);
    for (float& e : v.v) e = activation::ValueAt<function>(e, parameter);
    StoreFloats(v, y + i);
  }
};

template <ActivationFunction function, typename T>
struct BackwardBody {
  const T* at;
  const T* dy;
  T* dx;
  float parameter;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const Pack<float, kWidth> from = LoadFloats<kWidth>(at + i);
    // dx may alias dy: a thread has loaded its elements before it stores any, and no other thread touches them.
    Pack<float, kWidth> v = LoadFloats<kWidth>(dy + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v.v[k] *= activation::SlopeAt<function>(from.v[k], parameter);
    StoreFloats(v, dx + i);
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

cudaError_t ActivationForward(cudaStream_t stream, const ActivationArgs& g, ConstElements x, Elements y) {
  return WithElement(
      [&]<typename T>() {
        return WithFunction(g.function, [&]<ActivationFunction function>() {
          const ForwardBody<function, T> body = {x.As<T>(), y.As<T>(), g.parameter};
          return ForEach<kPackOf<T>>(stream, g.count, body, body.x, body.y);
        });
      },
      x.element(), y);
}

cudaError_t ActivationBackward(cudaStream_t stream, const ActivationArgs& g, ConstElements at, ConstElements dy,
                               Elements dx) {
  return WithElement(
      [&]<typename T>() {
        return WithFunction(g.function, [&]<ActivationFunction function>() {
          const BackwardBody<function, T> body = {at.As<T>(), dy.As<T>(), dx.As<T>(), g.parameter};
          return ForEach<kPackOf<T>>(stream, g.count, body, body.at, body.dy, body.dx);
        });
      },
      dy.element(), at, dx);
}

}  // namespace starring::cuda
