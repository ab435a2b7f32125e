// Operations that slide a window over each channel by itself, on NHWC float32: depthwise convolutions, and average
// pools. Lanes run along the channels.
//
// Words: a *tap* is a place of the window, counted row by row; a *block* is up to kLanes neighbouring channels.
//
// An output, or an element of dx, is one sum in registers, in the order of the taps or of the outputs that see it. So
// its bits depend neither on the instruction set nor on the number of threads. Sums of the weights' gradients are in
// float over a row of outputs, and in double over the rows of a share's images. Shares are added in order, in double,
// so these bits depend on the number of threads.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/arithmetic/instruction_set.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"

namespace starring {
namespace {

// Sixteen floats are one vector of AVX-512 or two of AVX2, and their sums stay in registers.
constexpr int64_t kLanes = 16;

// [begin, end) of taps or of outputs along one axis.
struct Range {
  int64_t begin, end;
};

// The taps of an output that are inside the image.
[[gnu::always_inline]] inline Range TapsInside(int64_t out, int64_t stride, int64_t padding, int64_t kernel,
                                               int64_t in) {
  const int64_t first = out * stride - padding;
  return {std::max<int64_t>(0, -first), std::min(kernel, in - first)};
}

// The outputs whose windows see place `at` of the image.
[[gnu::always_inline]] inline Range OutputsThatSee(int64_t at, int64_t stride, int64_t padding, int64_t kernel,
                                                   int64_t out) {
  const int64_t reach = at + padding;
  // Output o sees the place if o * stride <= reach < o * stride + kernel: two bounds for o.
  const int64_t begin = reach < kernel ? 0 : (reach - kernel) / stride + 1;
  return {begin, std::min(out, reach / stride + 1)};
}

// The outputs for which one tap is inside the image.
[[gnu::always_inline]] inline Range OutputsInside(int64_t tap, int64_t stride, int64_t padding, int64_t in,
                                                  int64_t out) {
  const int64_t shift = tap - padding;
  // The tap is inside if 0 <= o * stride + shift < in. The division is of positive numbers, so it may round up.
  const int64_t begin = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
  return {begin, in - 1 < shift ? 0 : std::min(out, (in - 1 - shift) / stride + 1)};
}

struct Args {
  const Pool2dSpec* window;
  const float* in;      // x; of a gradient's pass dy
  const float* weight;  // (taps, channels); null for an average
  const float* bias;    // null for none
  float* out;
  int64_t begin, end;  // images
};

// out = the sum over the window, with weights or divided by its places, for kWidth channels from c on.
template <bool kWeighted, int64_t kWidth>
[[gnu::always_inline]] inline void ForwardBlock(const Args& g, int64_t c) {
  const Pool2dSpec& s = *g.window;
  const float places = static_cast<float>(s.kernel_height * s.kernel_width);
  for (int64_t image = g.begin; image < g.end; ++image) {
    const float* const x = g.in + image * s.in_height * s.in_width * s.channels + c;
    float* y = g.out + image * s.out_height() * s.out_width() * s.channels + c;
    for (int64_t oh = 0; oh < s.out_height(); ++oh) {
      const Range rows = TapsInside(oh, s.stride_height, s.padding_height, s.kernel_height, s.in_height);
      for (int64_t ow = 0; ow < s.out_width(); ++ow, y += s.channels) {
        const Range columns = TapsInside(ow, s.stride_width, s.padding_width, s.kernel_width, s.in_width);
        float sum[kWidth];
        for (int64_t l = 0; l < kWidth; ++l) sum[l] = kWeighted && g.bias != nullptr ? g.bias[c + l] : 0.0f;
        for (int64_t kh = rows.begin; kh < rows.end; ++kh) {
          for (int64_t kw = columns.begin; kw < columns.end; ++kw) {
            const int64_t ih = oh * s.stride_height - s.padding_height + kh;
            const int64_t iw = ow * s.stride_width - s.padding_width + kw;
            const float* const from = x + (ih * s.in_width + iw) * s.channels;
            const float* const weight = kWeighted ? g.weight + (kh * s.kernel_width + kw) * s.channels + c : nullptr;
            for (int64_t l = 0; l < kWidth; ++l) sum[l] += kWeighted ? from[l] * weight[l] : from[l];
          }
        }
        // A division, as on the GPU: the product with the reciprocal would round twice.
        for (int64_t l = 0; l < kWidth; ++l) y[l] = kWeighted ? sum[l] : sum[l] / places;
      }
    }
  }
}

// out = dx: the sum over the outputs that see each place.
template <bool kWeighted, int64_t kWidth>
[[gnu::always_inline]] inline void InputGradientBlock(const Args& g, int64_t c) {
  const Pool2dSpec& s = *g.window;
  const float places = static_cast<float>(s.kernel_height * s.kernel_width);
  for (int64_t image = g.begin; image < g.end; ++image) {
    const float* const dy = g.in + image * s.out_height() * s.out_width() * s.channels + c;
    float* dx = g.out + image * s.in_height * s.in_width * s.channels + c;
    for (int64_t ih = 0; ih < s.in_height; ++ih) {
      const Range rows = OutputsThatSee(ih, s.stride_height, s.padding_height, s.kernel_height, s.out_height());
      for (int64_t iw = 0; iw < s.in_width; ++iw, dx += s.channels) {
        const Range columns = OutputsThatSee(iw, s.stride_width, s.padding_width, s.kernel_width, s.out_width());
        float sum[kWidth] = {};
        for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
          for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
            const int64_t kh = ih + s.padding_height - oh * s.stride_height;
            const int64_t kw = iw + s.padding_width - ow * s.stride_width;
            const float* const from = dy + (oh * s.out_width() + ow) * s.channels;
            const float* const weight = kWeighted ? g.weight + (kh * s.kernel_width + kw) * s.channels + c : nullptr;
            for (int64_t l = 0; l < kWidth; ++l) sum[l] += kWeighted ? from[l] * weight[l] : from[l];
          }
        }
        for (int64_t l = 0; l < kWidth; ++l) dx[l] = kWeighted ? sum[l] : sum[l] / places;
      }
    }
  }
}

// A depthwise convolution's sums: `out` has those of the weights' gradients, (taps, channels), then those of the bias.
struct GradientArgs {
  const Pool2dSpec* window;
  const float* x;
  const float* dy;
  double* out;
  int64_t begin, end;  // images
};

template <int64_t kWidth>
[[gnu::always_inline]] inline void WeightGradientBlock(const GradientArgs& g, int64_t c) {
  const Pool2dSpec& s = *g.window;
  const int64_t pixels = s.out_height() * s.out_width();
  for (int64_t tap = 0; tap < s.kernel_height * s.kernel_width; ++tap) {
    const int64_t kh = tap / s.kernel_width, kw = tap % s.kernel_width;
    const Range rows = OutputsInside(kh, s.stride_height, s.padding_height, s.in_height, s.out_height());
    const Range columns = OutputsInside(kw, s.stride_width, s.padding_width, s.in_width, s.out_width());
    double sum[kWidth] = {};
    for (int64_t image = g.begin; image < g.end; ++image) {
      for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
        const int64_t ih = oh * s.stride_height - s.padding_height + kh;
        float of_row[kWidth] = {};
        for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
          const int64_t iw = ow * s.stride_width - s.padding_width + kw;
          const float* const x = g.x + ((image * s.in_height + ih) * s.in_width + iw) * s.channels + c;
          const float* const dy = g.dy + (image * pixels + oh * s.out_width() + ow) * s.channels + c;
          for (int64_t l = 0; l < kWidth; ++l) of_row[l] += x[l] * dy[l];
        }
        for (int64_t l = 0; l < kWidth; ++l) sum[l] += double{of_row[l]};
      }
    }
    for (int64_t l = 0; l < kWidth; ++l) g.out[tap * s.channels + c + l] = sum[l];
  }
  double sum[kWidth] = {};
  for (int64_t row = g.begin * s.out_height(); row < g.end * s.out_height(); ++row) {
    float of_row[kWidth] = {};
    for (int64_t p = row * s.out_width(); p < (row + 1) * s.out_width(); ++p) {
      for (int64_t l = 0; l < kWidth; ++l) of_row[l] += g.dy[p * s.channels + c + l];
    }
    for (int64_t l = 0; l < kWidth; ++l) sum[l] += double{of_row[l]};
  }
  for (int64_t l = 0; l < kWidth; ++l) g.out[s.kernel_height * s.kernel_width * s.channels + c + l] = sum[l];
}

// Whole blocks of channels first, then the rest one by one.
template <bool kWeighted>
[[gnu::always_inline]] inline void ForwardLoop(const Args& g) {
  int64_t c = 0;
  for (; c + kLanes <= g.window->channels; c += kLanes) ForwardBlock<kWeighted, kLanes>(g, c);
  for (; c < g.window->channels; ++c) ForwardBlock<kWeighted, 1>(g, c);
}

template <bool kWeighted>
[[gnu::always_inline]] inline void InputGradientLoop(const Args& g) {
  int64_t c = 0;
  for (; c + kLanes <= g.window->channels; c += kLanes) InputGradientBlock<kWeighted, kLanes>(g, c);
  for (; c < g.window->channels; ++c) InputGradientBlock<kWeighted, 1>(g, c);
}

[[gnu::always_inline]] inline void WeightGradientLoop(const GradientArgs& g) {
  int64_t c = 0;
  for (; c + kLanes <= g.window->channels; c += kLanes) WeightGradientBlock<kLanes>(g, c);
  for (; c < g.window->channels; ++c) WeightGradientBlock<1>(g, c);
}

STARRING_DEFINE_CLONES(kDepthwiseForward, ForwardLoop<true>, Args);
STARRING_DEFINE_CLONES(kDepthwiseInputGradient, InputGradientLoop<true>, Args);
STARRING_DEFINE_CLONES(kAverageForward, ForwardLoop<false>, Args);
STARRING_DEFINE_CLONES(kAverageInputGradient, InputGradientLoop<false>, Args);
STARRING_DEFINE_CLONES(kWeightGradient, WeightGradientLoop, GradientArgs);

using Clones = void (*const[kInstructionSetCount])(const Args&);

void Run(const CpuContext& context, const Clones& clones, const Args& whole) {
  const auto pass = clones[static_cast<int>(context.instruction_set)];
  // Shares are whole images: only windows of one image overlap.
  ParallelRanges(context.threads, whole.window->batch, 1, [&](int64_t begin, int64_t end) {
    Args args = whole;
    args.begin = begin;
    args.end = end;
    pass(args);
  });
}

class CpuAveragePool2d : public FloatOperation {
 public:
  CpuAveragePool2d(const CpuContext* context, const AveragePool2dSpec& spec) : context_(context), spec_(spec) {}

  void Forward(const float* x, const float*, const float*, float* y) override {
    Run(*context_, kAverageForward, {.window = &spec_, .in = x, .out = y});
  }
  void Backward(const float*, const float*, const float*, float* dy, float* dx, float*, float*) override {
    Run(*context_, kAverageInputGradient, {.window = &spec_, .in = dy, .out = dx});
  }

 private:
  const CpuContext* const context_;
  const AveragePool2dSpec spec_;
};

class CpuDepthwiseConv2d : public FloatOperation {
 public:
  CpuDepthwiseConv2d(CpuContext* context, const DepthwiseConv2dSpec& spec)
      : context_(context), spec_(spec), taps_(spec.kernel_height * spec.kernel_width) {}

  // Packed weights, or the sums of all shares.
  int64_t scratch_bytes() const {
    return std::max(kFloatBytes * taps_ * spec_.channels,
                    static_cast<int64_t>(sizeof(double)) * context_->threads * SumsCount());
  }

  void Forward(const float* x, const float* weight, const float* bias, float* y) override {
    Run(*context_, kDepthwiseForward, {.window = &spec_, .in = x, .weight = Packed(weight), .bias = bias, .out = y});
  }

  void Backward(const float* x, const float* weight, const float*, float* dy, float* dx, float* dweight,
                float* dbias) override {
    if (dx != nullptr) {
      Run(*context_, kDepthwiseInputGradient, {.window = &spec_, .in = dy, .weight = Packed(weight), .out = dx});
    }
    // dx is complete: the sums overwrite the packed weights, which are in the same scratch memory.
    auto* const sums = reinterpret_cast<double*>(Scratch());
    const auto pass = kWeightGradient[static_cast<int>(context_->instruction_set)];
    ParallelShares(context_->threads, spec_.batch, 1, [&](int share, int64_t begin, int64_t end) {
      pass({&spec_, x, dy, sums + share * SumsCount(), begin, end});
    });
    // As many shares as ParallelShares used.
    const int shares = static_cast<int>(std::min<int64_t>(context_->threads, spec_.batch));
    for (int share = 1; share < shares; ++share) {
      // The loop is serial, because it adds as many numbers as weights for each share, far fewer than the products.
      for (int64_t i = 0; i < SumsCount(); ++i) sums[i] += sums[share * SumsCount() + i];
    }
    for (int64_t c = 0; c < spec_.channels; ++c) {
      for (int64_t tap = 0; tap < taps_; ++tap) {
        dweight[c * taps_ + tap] = static_cast<float>(sums[tap * spec_.channels + c]);
      }
      if (dbias != nullptr) dbias[c] = static_cast<float>(sums[taps_ * spec_.channels + c]);
    }
  }

 private:
  int64_t SumsCount() const { return (taps_ + 1) * spec_.channels; }
  // Other operations use the same memory in between.
  std::byte* Scratch() const { return context_->scratch.data(); }

  // (channels, taps) to (taps, channels), in which neighbouring lanes are neighbours.
  const float* Packed(const float* weight) const {
    auto* const packed = reinterpret_cast<float*>(Scratch());
    for (int64_t c = 0; c < spec_.channels; ++c) {
      for (int64_t tap = 0; tap < taps_; ++tap) packed[tap * spec_.channels + c] = weight[c * taps_ + tap];
    }
    return packed;
  }

  CpuContext* const context_;
  const DepthwiseConv2dSpec spec_;
  const int64_t taps_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context, const AveragePool2dSpec& spec) {
  return std::make_unique<CpuAveragePool2d>(context, spec);
}

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                   const DepthwiseConv2dSpec& spec) {
  auto conv = std::make_unique<CpuDepthwiseConv2d>(context, spec);
  RETURN_IF_ERROR(context->scratch.Reserve(conv->scratch_bytes()), "depthwise conv2d");
  return conv;
}

}  // namespace starring
