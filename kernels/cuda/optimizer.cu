#include "kernels/cuda/launch.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/update_formula.h"

namespace starring::cuda {
namespace {

// An element is read and written once, whatever the optimizer: the formula is a constant of the kernel, so that SGD,
// which has no states, loads none.
template <Update kUpdate>
struct UpdateBody {
  OptimizerArgs g;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    // Each thread reads the factors when it runs: a captured graph would repeat the factors of its capture.
    const CudaOptimizerScalars s = g.bound != nullptr ? g.bound->optimizer : g.scalars;
    const Pack<float, kWidth> gradient = LoadPack<kWidth>(g.gradient + i), in = LoadPack<kWidth>(g.parameters_in + i);
    Pack<float, kWidth> out, first = {}, second = {};
    if constexpr (kUpdate != Update::kSgd) first = LoadPack<kWidth>(g.first + i);
    if constexpr (kUpdate == Update::kAdamW) second = LoadPack<kWidth>(g.second + i);
    for (int k = 0; k < kWidth; ++k) {
      // Several threads may write here. Any of their indices will do, since the run ends.
      if (g.result != nullptr && !IsFinite(gradient.v[k])) g.result->non_finite_element = i + k;
      out.v[k] = UpdateOne<kUpdate>(s, gradient.v[k], in.v[k], first.v[k], second.v[k]);
    }
    if constexpr (kUpdate != Update::kSgd) StorePack(first, g.first + i);
    if constexpr (kUpdate == Update::kAdamW) StorePack(second, g.second + i);
    StorePack(out, g.parameters_out + i);
  }
};

template <Update kUpdate, typename... States>
cudaError_t Run(cudaStream_t stream, const OptimizerArgs& args, States*... states) {
  return ForEach(stream, args.count, UpdateBody<kUpdate>{args}, args.gradient, args.parameters_in, args.parameters_out,
                 states...);
}

struct NonFiniteBody {
  const float* values;
  CudaStepResult* result;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const Pack<float, kWidth> in = LoadPack<kWidth>(values + i);
    for (int k = 0; k < kWidth; ++k) {
      // No atomic: a store of 8 aligned bytes is one access, so one of the indices remains whole.
      if (!IsFinite(in.v[k])) result->non_finite_element = i + k;
    }
  }
};

}  // namespace

cudaError_t ApplyUpdate(cudaStream_t stream, const OptimizerArgs& args) {
  switch (args.update) {
    case Update::kSgd:
      return Run<Update::kSgd>(stream, args);
    case Update::kMomentum:
      return Run<Update::kMomentum>(stream, args, args.first);
    case Update::kNesterov:
      return Run<Update::kNesterov>(stream, args, args.first);
    case Update::kAdamW:
      return Run<Update::kAdamW>(stream, args, args.first, args.second);
  }
  return cudaErrorInvalidValue;
}

cudaError_t FindNonFinite(cudaStream_t stream, const float* values, int64_t count, CudaStepResult* result) {
  return ForEach(stream, count, NonFiniteBody{values, result}, values);
}

}  // namespace starring::cuda
