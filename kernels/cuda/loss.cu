#include "kernels/cuda/launch.h"
#include "kernels/cuda/loss.h"

namespace starring::cuda {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kWarps = kBlockThreads / kWarpThreads;
constexpr unsigned kWholeWarp = 0xffffffffu;

struct Best {
  float value;
  int64_t index;
};

// The larger; among equal values the first; a NaN before any number, so that it spreads to the result.
__device__ inline Best Better(const Best& a, const Best& b) {
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return a_nan ? a : b;
  if (a.value != b.value && !a_nan) return a.value > b.value ? a : b;
  return a.index < b.index ? a : b;
}

// All lanes get the result. Better is commutative, so both partners of an exchange choose the same.
__device__ inline Best BestOfWarp(Best best) {
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    const float value = __shfl_xor_sync(kWholeWarp, best.value, distance);
    const int64_t index = __shfl_xor_sync(kWholeWarp, best.index, distance);
    best = Better(best, {value, index});
  }
  return best;
}

__device__ inline double SumOfWarp(double sum) {
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, distance);
  }
  return sum;
}

__device__ inline float ScaleOf(const LossArgs& g) { return g.bound != nullptr ? g.bound->loss_scale : g.loss_scale; }

// Run by a whole warp.
__device__ inline void SoftmaxCrossEntropy(const LossArgs& g, int64_t sample) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const float* const logits = g.y + sample * g.outputs;

  // Every lane begins with class 0, which exists, even if it has no class of its own. A lane that began with -infinity
  // would win over logits that are all -infinity, with a class that does not exist.
  Best best = {logits[0], 0};
  for (int64_t c = lane; c < g.outputs; c += kWarpThreads) best = Better(best, {logits[c], c});
  best = BestOfWarp(best);
  double sum = 0;
  for (int64_t c = lane; c < g.outputs; c += kWarpThreads) sum += expf(logits[c] - best.value);
  sum = SumOfWarp(sum);

  const int64_t label = g.labels[sample];
  // A label outside would be an index outside of the array; it makes the result NaN instead.
  const bool known = label >= 0 && label < g.outputs;
  const float nan = __int_as_float(0x7fffffff);
  // Read before the first write: dlogits may alias logits. The __syncwarp below keeps other lanes from writing earlier.
  const float label_logit = known ? logits[label] : nan;
  const double smoothing = g.label_smoothing;
  const double other = smoothing / static_cast<double>(g.outputs);  // the target of a class that is not the label
  double smoothed = 0;                                              // the other targets' part of the loss
  if (smoothing > 0) {
    // Without smoothing this would be NaN for a logit of -infinity, whose factor is 0.
    double logarithm_sum = 0;
    for (int64_t c = lane; c < g.outputs; c += kWarpThreads) logarithm_sum += logits[c] - best.value;
    smoothed = other * SumOfWarp(logarithm_sum);
  }
  if (lane == 0) {
    // This is -log(softmax) without the softmax: a probability so small that it is 0 in float has a finite loss here.
    const double label_part = (1 - smoothing) * static_cast<double>(label_logit - best.value);
    g.samples[sample] = {log(sum) - label_part - smoothed, best.index == label ? 1 : 0};
  }
  if (g.dy == nullptr) return;
  __syncwarp();
  float* const dlogits = g.dy + sample * g.outputs;
  const float scale = ScaleOf(g);
  // A label that does not exist makes the whole gradient of the sample NaN, which the search for such values finds.
  const float factor = known ? static_cast<float>(scale / sum) : nan;
  // Without smoothing, this 0 and this scale leave the bits as they are.
  const float scaled_other = static_cast<float>(scale * other);
  const float scaled_label = static_cast<float>(scale * (1 - smoothing));
  for (int64_t c = lane; c < g.outputs; c += kWarpThreads) {
    const float difference = expf(logits[c] - best.value) * factor - scaled_other;
    dlogits[c] = c == label ? difference - scaled_label : difference;
  }
}

// One output's part of its sample's loss, and the loss's derivative by the output, before both are divided by the
// number of outputs. The CPU has the same formulas (kernels/cpu/value_loss.cc).
struct Term {
  double loss;
  float derivative;
};

__device__ inline Term SquaredError(float output, float target) {
  const float difference = output - target;
  return {static_cast<double>(difference) * difference, 2 * difference};
}

__device__ inline Term BinaryCrossEntropy(float output, float target) {
  // The exponent is at most 0, so an output of any size overflows nothing.
  const float power = expf(-fabsf(output));
  const float sigmoid = output >= 0 ? 1 / (1 + power) : power / (1 + power);
  const double positive = output > 0 ? output : 0.0;
  return {positive - static_cast<double>(output) * target + log(1.0 + power), sigmoid - target};
}

// Run by a whole warp.
template <LossFunction kFunction>
__device__ inline void CompareValues(const LossArgs& g, int64_t sample) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64_t first = sample * g.outputs;
  const float factor = ScaleOf(g) / static_cast<float>(g.outputs);
  double sum = 0, wrong = 0;
  for (int64_t k = first + lane; k < first + g.outputs; k += kWarpThreads) {
    const float output = g.y[k], target = g.values[k];  // read before the write: dy may alias y
    const Term term =
        kFunction == LossFunction::kBce ? BinaryCrossEntropy(output, target) : SquaredError(output, target);
    sum += term.loss;
    if ((output > 0) != (target > 0.5f)) wrong += 1;
    if (g.dy != nullptr) g.dy[k] = term.derivative * factor;
  }
  sum = SumOfWarp(sum);
  wrong = SumOfWarp(wrong);
  if (lane != 0) return;
  const bool is_right = kFunction == LossFunction::kBce && wrong == 0;
  g.samples[sample] = {sum / static_cast<double>(g.outputs), is_right ? 1 : 0};
}

// Run by the last block. A strided sum for each thread, then a tree: the order depends on the batch size alone.
__device__ inline void AddSamplesUp(const LossArgs& g) {
  __shared__ LossSums buffer[kBlockThreads];
  const int thread = static_cast<int>(threadIdx.x);
  LossSums sum = {0, 0};
  for (int64_t i = thread; i < g.batch; i += kBlockThreads) {
    sum.loss += g.samples[i].loss;
    sum.correct += g.samples[i].correct;
  }
  buffer[thread] = sum;
  for (int stride = kBlockThreads / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (thread < stride) {
      buffer[thread].loss += buffer[thread + stride].loss;
      buffer[thread].correct += buffer[thread + stride].correct;
    }
  }
  // The loop ends without a barrier: thread 0 itself has made the last sum.
  if (thread != 0) return;
  *g.total = buffer[0];
  if (g.result != nullptr) {
    g.result->loss_sum = buffer[0].loss;
    g.result->correct = buffer[0].correct;
  }
}

template <LossFunction kFunction>
__global__ void __launch_bounds__(kBlockThreads) LossKernel(LossArgs g) {
  const int64_t sample = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpThreads;
  // No return for warps without a sample: IsLastBlock has barriers that every thread of the block must reach.
  if (sample < g.batch) {
    if constexpr (kFunction == LossFunction::kSoftmax) {
      SoftmaxCrossEntropy(g, sample);
    } else {
      CompareValues<kFunction>(g, sample);
    }
  }
  if (IsLastBlock(g.counter, gridDim.x)) AddSamplesUp(g);
}

}  // namespace

cudaError_t RunLoss(cudaStream_t stream, const LossArgs& args) {
  const LaunchShape shape{.blocks = CeilDivide(args.batch, kWarps)};
  switch (args.function) {
    case LossFunction::kMse:
      return Launch(stream, shape, LossKernel<LossFunction::kMse>, args);
    case LossFunction::kBce:
      return Launch(stream, shape, LossKernel<LossFunction::kBce>, args);
    case LossFunction::kSoftmax:
      break;
  }
  return Launch(stream, shape, LossKernel<LossFunction::kSoftmax>, args);
}

}  // namespace starring::cuda
