// Group normalisation on NHWC float32. Layer normalisation is the same with one group of one pixel, whose channels are
// all values of a sample.
//
// Every sum over an image's pixels is in float, a lane for each channel, in the order of the pixels; sums over channels
// and images are in double. A thread has whole images, and the gradients of weights are summed over images in order by
// one thread. So bits depend neither on the instruction set nor on the number of threads. Forward and backward each
// read x and dy twice: first for the sums.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/instruction_set.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"

namespace starring {
namespace {

// One pass over an image. All vectors have a value for each channel; unused pointers are null.
struct Args {
  const float* x = nullptr;
  const float* dy = nullptr;
  const float* mean = nullptr;
  const float* scale = nullptr;
  const float* shift = nullptr;
  const float* slope = nullptr;
  float* out = nullptr;     // (pixels, channels)
  float* sums = nullptr;    // begins with zeros
  float* second = nullptr;  // likewise
  int64_t pixels = 0, channels = 0;
};

// sums += x.
[[gnu::always_inline]] inline void SumLoop(const Args& g) {
  for (int64_t p = 0; p < g.pixels; ++p) {
#pragma GCC ivdep
    for (int64_t c = 0; c < g.channels; ++c) g.sums[c] += g.x[p * g.channels + c];
  }
}

// sums += (x - mean)^2.
[[gnu::always_inline]] inline void SquaresLoop(const Args& g) {
  for (int64_t p = 0; p < g.pixels; ++p) {
#pragma GCC ivdep
    for (int64_t c = 0; c < g.channels; ++c) {
      const float distance = g.x[p * g.channels + c] - g.mean[c];
      g.sums[c] += distance * distance;
    }
  }
}

// out = (x - mean) * scale + shift.
[[gnu::always_inline]] inline void NormaliseLoop(const Args& g) {
  for (int64_t p = 0; p < g.pixels; ++p) {
    const int64_t row = p * g.channels;
#pragma GCC ivdep
    for (int64_t c = 0; c < g.channels; ++c) g.out[row + c] = (g.x[row + c] - g.mean[c]) * g.scale[c] + g.shift[c];
  }
}

// sums += dy; second += dy * (x - mean).
[[gnu::always_inline]] inline void GradientSumsLoop(const Args& g) {
  for (int64_t p = 0; p < g.pixels; ++p) {
    const int64_t row = p * g.channels;
#pragma GCC ivdep
    for (int64_t c = 0; c < g.channels; ++c) {
      g.sums[c] += g.dy[row + c];
      g.second[c] += g.dy[row + c] * (g.x[row + c] - g.mean[c]);
    }
  }
}

// out = dx = dy * scale - shift - (x - mean) * slope.
[[gnu::always_inline]] inline void InputGradientLoop(const Args& g) {
  for (int64_t p = 0; p < g.pixels; ++p) {
    const int64_t row = p * g.channels;
#pragma GCC ivdep
    for (int64_t c = 0; c < g.channels; ++c) {
      g.out[row + c] = g.dy[row + c] * g.scale[c] - g.shift[c] - (g.x[row + c] - g.mean[c]) * g.slope[c];
    }
  }
}

STARRING_DEFINE_CLONES(kSum, SumLoop, Args);
STARRING_DEFINE_CLONES(kSquares, SquaresLoop, Args);
STARRING_DEFINE_CLONES(kNormalise, NormaliseLoop, Args);
STARRING_DEFINE_CLONES(kGradientSums, GradientSumsLoop, Args);
STARRING_DEFINE_CLONES(kInputGradient, InputGradientLoop, Args);

class CpuGroupNorm : public LayerOperation {
 public:
  CpuGroupNorm(const CpuContext* context, const GroupNormSpec& spec)
      : context_(context),
        spec_(spec),
        group_channels_(spec.channels / spec.groups),
        image_(spec.pixels * spec.channels),
        means_(static_cast<size_t>(spec.batch * spec.groups)),
        inverse_deviations_(means_.size()),
        sums_(static_cast<size_t>(2 * spec.batch * spec.channels)),
        vectors_(static_cast<size_t>(kVectors * context->threads * spec.channels)) {}

  void Forward(const float* x, const float* gamma, const float* beta, float* y) override {
    ForImages([&](const Vectors& v, int64_t image) {
      Args args = ArgsOf(v);
      args.x = x + image * image_;
      args.sums = Zeros(SumsOf(image));
      Run(kSum, args);
      ForGroups([&](int64_t group, int64_t first, int64_t end) {
        means_[image * spec_.groups + group] = static_cast<float>(SumOf(args.sums, first, end) / GroupSize());
        std::fill(v.mean + first, v.mean + end, means_[image * spec_.groups + group]);
      });
      Zeros(args.sums);
      Run(kSquares, args);
      ForGroups([&](int64_t group, int64_t first, int64_t end) {
        const double variance = SumOf(args.sums, first, end) / GroupSize();
        const auto inverse = static_cast<float>(1 / std::sqrt(variance + double{spec_.epsilon}));
        inverse_deviations_[image * spec_.groups + group] = inverse;
        for (int64_t c = first; c < end; ++c) v.scale[c] = gamma[c] * inverse;
      });
      args.shift = beta;
      args.out = y + image * image_;
      Run(kNormalise, args);
    });
  }

  void Backward(const float* x, const float* gamma, const float*, float* dy, float* dx, float* dgamma,
                float* dbeta) override {
    ForImages([&](const Vectors& v, int64_t image) {
      Args args = ArgsOf(v);
      args.x = x + image * image_;
      args.dy = dy + image * image_;
      args.sums = Zeros(SumsOf(image));
      args.second = Zeros(args.sums + spec_.channels);
      ForGroups([&](int64_t group, int64_t first, int64_t end) {
        std::fill(v.mean + first, v.mean + end, means_[image * spec_.groups + group]);
      });
      Run(kGradientSums, args);
      if (dx == nullptr) return;
      ForGroups([&](int64_t group, int64_t first, int64_t end) {
        const float inverse = inverse_deviations_[image * spec_.groups + group];
        double sum = 0, product = 0;
        for (int64_t c = first; c < end; ++c) {
          sum += double{gamma[c]} * args.sums[c];
          product += double{gamma[c]} * args.second[c];
          v.scale[c] = gamma[c] * inverse;
        }
        const double cube = double{inverse} * inverse * inverse;
        std::fill(v.shift + first, v.shift + end, static_cast<float>(sum * inverse / GroupSize()));
        std::fill(v.slope + first, v.slope + end, static_cast<float>(product * cube / GroupSize()));
      });
      args.shift = v.shift;
      args.slope = v.slope;
      args.out = dx + image * image_;
      Run(kInputGradient, args);
    });
    for (int64_t c = 0; c < spec_.channels; ++c) {
      double sum = 0, product = 0;
      for (int64_t image = 0; image < spec_.batch; ++image) {
        const float* const sums = SumsOf(image);
        sum += sums[c];
        product += double{sums[spec_.channels + c]} * inverse_deviations_[image * spec_.groups + c / group_channels_];
      }
      dbeta[c] = static_cast<float>(sum);
      dgamma[c] = static_cast<float>(product);
    }
  }

 private:
  // A thread's vectors, of a value for each channel.
  static constexpr int64_t kVectors = 4;
  struct Vectors {
    float *mean, *scale, *shift, *slope;
  };
  using Clones = void (*const[kInstructionSetCount])(const Args&);

  double GroupSize() const { return static_cast<double>(spec_.pixels * group_channels_); }
  float* SumsOf(int64_t image) { return sums_.data() + 2 * image * spec_.channels; }
  float* Zeros(float* sums) const { return std::fill_n(sums, spec_.channels, 0.0f) - spec_.channels; }
  static double SumOf(const float* sums, int64_t first, int64_t end) {
    double sum = 0;
    for (int64_t c = first; c < end; ++c) sum += sums[c];
    return sum;
  }
  Args ArgsOf(const Vectors& v) const {
    return {.mean = v.mean, .scale = v.scale, .pixels = spec_.pixels, .channels = spec_.channels};
  }
  void Run(const Clones& clones, const Args& args) const { clones[static_cast<int>(context_->instruction_set)](args); }

  template <typename Body>
  void ForGroups(const Body& body) const {
    for (int64_t g = 0; g < spec_.groups; ++g) body(g, g * group_channels_, (g + 1) * group_channels_);
  }
  template <typename Body>
  void ForImages(const Body& body) {
    ParallelShares(context_->threads, spec_.batch, 1, [&](int share, int64_t begin, int64_t end) {
      float* const v = vectors_.data() + kVectors * share * spec_.channels;
      for (int64_t image = begin; image < end; ++image) {
        body(Vectors{v, v + spec_.channels, v + 2 * spec_.channels, v + 3 * spec_.channels}, image);
      }
    });
  }

  const CpuContext* const context_;
  const GroupNormSpec spec_;
  const int64_t group_channels_, image_;
  std::vector<float> means_, inverse_deviations_;  // by image and group, of the last Forward
  std::vector<float> sums_;                        // by image: two for each channel
  std::vector<float> vectors_;                     // by thread
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context, const GroupNormSpec& spec) {
  try {
    return std::make_unique<CpuGroupNorm>(context, spec);
  } catch (const std::bad_alloc&) {  // by a vector; no exception may leave this target
    return absl::ResourceExhaustedError(absl::StrCat("group norm: no memory for the statistics of ", spec.batch, " x ",
                                                     spec.pixels, " x ", spec.channels, " elements"));
  }
}

}  // namespace starring
