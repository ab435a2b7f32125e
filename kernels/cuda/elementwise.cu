#include "kernels/cuda/device_philox.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"

namespace starring::cuda {
namespace {

// Each body treats kWidth neighbours: a pack of four, or one element where there is no pack (launch.h, ForEach).
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

// The ReLU is part of the pass: a separate one would read and write y again.
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

__global__ void __launch_bounds__(kBlockThreads)
    DropoutKernel(DropoutArgs g, Alignment alignment, const float* in, float* out) {
  const int64_t thread = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  // Read on the GPU: a captured graph runs this kernel for every step with the arguments of its capture.
  const int64_t step = g.bound != nullptr ? g.bound->step : g.values.step;
  const int64_t first_sample = g.bound != nullptr ? g.bound->first_sample : g.values.first_sample;
  const uint64_t first_word = static_cast<uint64_t>(first_sample) * static_cast<uint64_t>(g.sample_elements);
  // A thread computes one counter, whose four words decide four elements. The counter is the CPU's: group, step,
  // purpose and layer.
  const uint64_t group = first_word / 4 + static_cast<uint64_t>(thread);
  const PhiloxWords words = Philox({{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                                     static_cast<uint32_t>(step), kDropoutPurpose << 24 | g.stream}},
                                   g.seed);
  // A group is four words. Where this rank's first word is in the middle of one, its first group begins before its
  // first element, and no group is a whole pack.
  const int64_t first = 4 * thread - static_cast<int64_t>(first_word % 4);
  // The choice cannot be made on the host, as elsewhere: a bound first_sample is known only now.
  if (alignment == Alignment::kPacks && first_word % 4 == 0 && first + 4 <= g.count) {
    Pack<float, 4> v = LoadPack<4>(in + first);
#pragma unroll
    for (int k = 0; k < 4; ++k) v.v[k] = words.v[k] >> 8 >= g.threshold ? v.v[k] * g.scale : 0.0f;
    StorePack(v, out + first);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t e = first + k;
    // A group at either end has words of elements that this rank does not have.
    if (e >= 0 && e < g.count) out[e] = words.v[k] >> 8 >= g.threshold ? in[e] * g.scale : 0.0f;
  }
}

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

cudaError_t ApplyDropout(cudaStream_t stream, const DropoutArgs& args, const float* in, float* out) {
  const Alignment alignment = AlignedForPacks(in, out) ? Alignment::kPacks : Alignment::kElements;
  // One group more than elements need, because they may begin in the middle of one, which only the device knows if the
  // step values are bound.
  const int64_t groups = args.count / 4 + 2;
  return Launch(stream, {.blocks = CeilDivide(groups, kBlockThreads)}, DropoutKernel, args, alignment, in, out);
}

}  // namespace starring::cuda
