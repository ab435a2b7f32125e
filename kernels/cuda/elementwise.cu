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
    StorePack(ReluGradientOf(LoadPack<kWidth>(y + i), LoadPack<kWidth>(dy + i)), dx + i);
  }
};

template <bool kRelu>
struct AddBody {
  const float* a;
  const float* b;
  float* y;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    Pack<float, kWidth> sum = LoadPack<kWidth>(a + i);
    sum += LoadPack<kWidth>(b + i);
    for (float& e : sum.v) e = kRelu ? ReluOf(e) : e;
    StorePack(sum, y + i);
  }
};

struct AddReluBackwardBody {
  const float* y;
  const float* a;
  const float* b;
  float* dx;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    Pack<float, kWidth> sum = LoadPack<kWidth>(a + i);
    sum += LoadPack<kWidth>(b + i);
    StorePack(ReluGradientOf(LoadPack<kWidth>(y + i), sum), dx + i);
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

cudaError_t AddReluBackward(cudaStream_t stream, const float* y, const float* a, const float* b, float* dx,
                            int64_t count) {
  return ForEach(stream, count, AddReluBackwardBody{y, a, b, dx}, y, a, b, dx);
}

cudaError_t Accumulate(cudaStream_t stream, const float* x, float* y, int64_t count) {
  return ForEach(stream, count, AddBody<false>{y, x, y}, x, y);
}

}  // namespace starring::cuda
