#include "kernels/cuda/bfloat16.h"
#include "kernels/cuda/device_philox.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"

namespace starring::cuda {
namespace {

// Each body treats kWidth neighbours: a pack, or one element where there is no pack (launch.h, ForEach).
template <typename T>
struct ReluBody {
  const T* x;
  T* y;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    Pack<float, kWidth> v = LoadFloats<kWidth>(x + i);
    for (float& e : v.v) e = ReluOf(e);
    StoreFloats(v, y + i);
  }
};

template <typename T>
struct ReluBackwardBody {
  const T* y;
  const T* dy;
  T* dx;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    StoreFloats(ReluGradientOf(LoadFloats<kWidth>(y + i), LoadFloats<kWidth>(dy + i)), dx + i);
  }
};

// The ReLU is part of the pass: a separate one would read and write y again.
template <bool kRelu, typename T>
struct AddBody {
  const T* a;
  const T* b;
  T* y;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    Pack<float, kWidth> sum = LoadFloats<kWidth>(a + i);
    sum += LoadFloats<kWidth>(b + i);
    for (float& e : sum.v) e = kRelu ? ReluOf(e) : e;
    StoreFloats(sum, y + i);
  }
};

template <typename T>
struct AddReluBackwardBody {
  const T* y;
  const T* a;
  const T* b;
  T* dx;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    Pack<float, kWidth> sum = LoadFloats<kWidth>(a + i);
    sum += LoadFloats<kWidth>(b + i);
    StoreFloats(ReluGradientOf(LoadFloats<kWidth>(y + i), sum), dx + i);
  }
};

// One of the two types is float.
template <typename From, typename To>
struct CastBody {
  const From* from;
  To* to;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    StoreFloats(LoadFloats<kWidth>(from + i), to + i);
  }
};

template <typename From, typename To>
cudaError_t CastTo(cudaStream_t stream, ConstElements from, Elements to, int64_t count) {
  const CastBody<From, To> body = {from.As<From>(), to.As<To>()};
  return ForEach<kPackOf<Bfloat16>>(stream, count, body, body.from, body.to);
}

template <bool kRelu>
cudaError_t AddTo(cudaStream_t stream, ConstElements a, ConstElements b, Elements y, int64_t count) {
  return WithElement(
      [&]<typename T>() {
        const AddBody<kRelu, T> body = {a.As<T>(), b.As<T>(), y.As<T>()};
        return ForEach<kPackOf<T>>(stream, count, body, body.a, body.b, body.y);
      },
      a.element(), b, y);
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    DropoutKernel(DropoutArgs g, Alignment alignment, const T* in, T* out) {
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
    Pack<float, 4> v = LoadFloats<4>(in + first);
#pragma unroll
    for (int k = 0; k < 4; ++k) v.v[k] = words.v[k] >> 8 >= g.threshold ? v.v[k] * g.scale : 0.0f;
    StoreFloats(v, out + first);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t e = first + k;
    // A group at either end has words of elements that this rank does not have.
    if (e < 0 || e >= g.count) continue;
    out[e] = Rounded<T>(words.v[k] >> 8 >= g.threshold ? FloatOf(in[e]) * g.scale : 0.0f);
  }
}

}  // namespace

cudaError_t Relu(cudaStream_t stream, ConstElements x, Elements y, int64_t count) {
  return WithElement(
      [&]<typename T>() {
        const ReluBody<T> body = {x.As<T>(), y.As<T>()};
        return ForEach<kPackOf<T>>(stream, count, body, body.x, body.y);
      },
      x.element(), y);
}

cudaError_t ReluBackward(cudaStream_t stream, ConstElements y, ConstElements dy, Elements dx, int64_t count) {
  return WithElement(
      [&]<typename T>() {
        const ReluBackwardBody<T> body = {y.As<T>(), dy.As<T>(), dx.As<T>()};
        return ForEach<kPackOf<T>>(stream, count, body, body.y, body.dy, body.dx);
      },
      y.element(), dy, dx);
}

cudaError_t Add(cudaStream_t stream, ConstElements a, ConstElements b, Elements y, int64_t count) {
  return AddTo<false>(stream, a, b, y, count);
}

cudaError_t AddRelu(cudaStream_t stream, ConstElements a, ConstElements b, Elements y, int64_t count) {
  return AddTo<true>(stream, a, b, y, count);
}

cudaError_t AddReluBackward(cudaStream_t stream, ConstElements y, ConstElements a, ConstElements b, Elements dx,
                            int64_t count) {
  return WithElement(
      [&]<typename T>() {
        const AddReluBackwardBody<T> body = {y.As<T>(), a.As<T>(), b.As<T>(), dx.As<T>()};
        return ForEach<kPackOf<T>>(stream, count, body, body.y, body.a, body.b, body.dx);
      },
      y.element(), a, b, dx);
}

cudaError_t Cast(cudaStream_t stream, ConstElements from, Elements to, int64_t count) {
  if (from.element() == to.element()) return cudaErrorInvalidValue;
  return to.element() == Element::kBfloat16 ? CastTo<float, Bfloat16>(stream, from, to, count)
                                            : CastTo<Bfloat16, float>(stream, from, to, count);
}

cudaError_t ApplyDropout(cudaStream_t stream, const DropoutArgs& args, ConstElements in, Elements out) {
  const Alignment alignment = AlignedForPacks(in.As<char>(), out.As<char>()) ? Alignment::kPacks : Alignment::kElements;
  // One group more than elements need, because they may begin in the middle of one, which only the device knows if the
  // step values are bound.
  const int64_t groups = args.count / 4 + 2;
  return WithElement(
      [&]<typename T>() {
        return Launch(stream, {.blocks = CeilDivide(groups, kBlockThreads)}, DropoutKernel<T>, args, alignment,
                      in.As<T>(), out.As<T>());
      },
      in.element(), out);
}

}  // namespace starring::cuda
