#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/for_each.h"

namespace starring::cuda {
namespace {

struct ReluBody {
  const float* x;
  float* y;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    Pack<float, kWidth> v = LoadPack<kWidth>(x + i);
    for (float& e : v.v) e = ReluOf(e);
    StorePack(v, y + i);
  }
};

struct ReluBackwardBody {
  const float* y;
  const float* dy;
  float* dx;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const Pack<float, kWidth> out = LoadPack<kWidth>(y + i);
    Pack<float, kWidth> v = LoadPack<kWidth>(dy + i);
    for (int k = 0; k < kWidth; ++k) v.v[k] = out.v[k] > 0.0f ? v.v[k] : 0.0f;
    StorePack(v, dx + i);
  }
};

template <bool kRelu>
struct AddBody {
  const float* a;
  const float* b;
  float* y;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    Pack<float, kWidth> v = LoadPack<kWidth>(a + i);
    const Pack<float, kWidth> w = LoadPack<kWidth>(b + i);
    for (int k = 0; k < kWidth; ++k) {
      const float sum = v.v[k] + w.v[k];
      v.v[k] = kRelu ? ReluOf(sum) : sum;
    }
    StorePack(v, y + i);
  }
};

}  // namespace

cudaError_t Relu(cudaStream_t stream, const float* x, float* y, int64_t count) {
  return ForEach(stream, count, ReluBody{x, y}, x, y);
}

cudaError_t ReluBackward(cudaStream_t stream, const float* y, const float* dy, float* dx, int64_t count) {
  return ForEach(stream, count, ReluBackwardBody{y, dy, dx}, y, dy, dx);
}

cudaError_t Add(cudaStream_t stream, const float* a, const float* b, float* y, int64_t count) {
  return ForEach(stream, count, AddBody<false>{a, b, y}, a, b, y);
}

cudaError_t AddRelu(cudaStream_t stream, const float* a, const float* b, float* y, int64_t count) {
  return ForEach(stream, count, AddBody<true>{a, b, y}, a, b, y);
}

cudaError_t Accumulate(cudaStream_t stream, const float* x, float* y, int64_t count) {
  return ForEach(stream, count, AddBody<false>{y, x, y}, x, y);
}

}  // namespace starring::cuda
