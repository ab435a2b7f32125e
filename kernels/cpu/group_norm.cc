// Group normalisation on NHWC float32. Layer normalisation is the same with one group of one pixel, whose channels are
// all values of a sample.
//
// A *chunk* is as many pixels as fill about 16 KiB, and at most 64. Its sums are in float, a lane for each channel, in
// the order of the pixels. Sums over chunks, channels and images are in double and in order. Chunks depend on the shape
// alone, and a thread has whole images. So bits depend neither on the instruction set nor on the number of threads.
// Forward reads x three times, backward reads x and dy twice: first for the sums.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/instruction_set.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"

namespace starring {
namespace {

// One pass over an image or a chunk. All vectors have a value for each channel; unused pointers are null.
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

// sums += x - mean, where `mean` is a value near x. The sum of x itself would lose digits where all x are far from 0.
[[gnu::always_inline]] inline void SumLoop(const Args& g) {
  for (int64_t p = 0; p < g.pixels; ++p) {
#pragma GCC ivdep
    for (int64_t c = 0; c < g.channels; ++c) g.sums[c] += g.x[p * g.channels + c] - g.mean[c];
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

// A float sum of more pixels would lose digits: that of 256 equal numbers is wrong by up to 2e-6 of it, of 64 by 6e-7.
constexpr int64_t kChunkPixelsMax = 64;
constexpr int64_t kChunkFloats = 4096;  // 16 KiB: half of a first-level cache of 32 KiB

class CpuGroupNorm : public FloatOperation {
 public:
  CpuGroupNorm(CpuContext* context, const GroupNormSpec& spec)
      : context_(context),
        spec_(spec),
        group_channels_(spec.channels / spec.groups),
        image_(spec.pixels * spec.channels),
        chunk_pixels_(std::clamp<int64_t>(kChunkFloats / spec.channels, 1, kChunkPixelsMax)),
        means_(static_cast<size_t>(spec.batch * spec.groups)),
        inverse_deviations_(means_.size()) {}

  // The threads' vectors, then the sums of all images.
  int64_t scratch_bytes() const {
    return context_->threads * ThreadBytes() + 2 * kFloatBytes * spec_.batch * spec_.channels;
  }

  void Forward(const float* x, const float* gamma, const float* beta, float* y) override {
    ForImages([&](const Vectors& v, int64_t image) {
      Args args = ArgsOf(v);
      args.x = x + image * image_;
      std::copy_n(args.x, spec_.channels, v.mean);  // the first pixel
      AddChunks(kSum, args, v);
      ForGroups([&](int64_t group, int64_t first, int64_t end) {
        double sum = 0;
        for (int64_t c = first; c < end; ++c) sum += v.sums[c] + static_cast<double>(spec_.pixels) * v.mean[c];
        means_[image * spec_.groups + group] = static_cast<float>(sum / GroupSize());
        std::fill(v.mean + first, v.mean + end, means_[image * spec_.groups + group]);
      });
      AddChunks(kSquares, args, v);
      ForGroups([&](int64_t group, int64_t first, int64_t end) {
        double squares = 0;
        for (int64_t c = first; c < end; ++c) squares += v.sums[c];
        const auto inverse = static_cast<float>(1 / std::sqrt(squares / GroupSize() + double{spec_.epsilon}));
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
      ForGroups([&](int64_t group, int64_t first, int64_t end) {
        std::fill(v.mean + first, v.mean + end, means_[image * spec_.groups + group]);
      });
      AddChunks(kGradientSums, args, v);
      // WeightGradients adds the images in their order, when all threads have finished.
      float* const sums = SumsOf(image);
      for (int64_t c = 0; c < spec_.channels; ++c) {
        sums[c] = static_cast<float>(v.sums[c]);
        sums[spec_.channels + c] = static_cast<float>(v.second[c]);
      }
      if (dx != nullptr) InputGradient(v, args, gamma, image, dx);
    });
    WeightGradients(dgamma, dbeta);
  }

 private:
  // A thread's scratch memory. Each has a value for each channel.
  static constexpr int64_t kFloatVectors = 6, kDoubleVectors = 2;
  struct Vectors {
    double *sums, *second;
    float *chunk_sums, *chunk_second, *mean, *scale, *shift, *slope;
  };
  using Clones = void (*const[kInstructionSetCount])(const Args&);

  double GroupSize() const { return static_cast<double>(spec_.pixels * group_channels_); }
  int64_t ThreadBytes() const {
    constexpr int64_t kBytes = kDoubleVectors * static_cast<int64_t>(sizeof(double)) + kFloatVectors * kFloatBytes;
    return RoundUp(kBytes * spec_.channels, kCacheLineBytes);
  }
  Vectors VectorsOf(int share) const {
    auto* const doubles = reinterpret_cast<double*>(context_->scratch.data() + share * ThreadBytes());
    const int64_t n = spec_.channels;
    auto* const floats = reinterpret_cast<float*>(doubles + kDoubleVectors * n);
    return {doubles, doubles + n, floats, floats + n, floats + 2 * n, floats + 3 * n, floats + 4 * n, floats + 5 * n};
  }
  // Two for each channel, from dy and for gamma. Nothing else uses the memory until Backward ends.
  float* SumsOf(int64_t image) const {
    auto* const sums = reinterpret_cast<float*>(context_->scratch.data() + context_->threads * ThreadBytes());
    return sums + 2 * image * spec_.channels;
  }
  Args ArgsOf(const Vectors& v) const {
    return {.mean = v.mean, .scale = v.scale, .pixels = spec_.pixels, .channels = spec_.channels};
  }
  void Run(const Clones& clones, const Args& args) const { clones[static_cast<int>(context_->instruction_set)](args); }

  // v.sums and v.second = the sums of a pass over the image of `args`.
  void AddChunks(const Clones& clones, const Args& args, const Vectors& v) const {
    const int64_t n = spec_.channels;
    std::fill_n(v.sums, n, 0.0);
    std::fill_n(v.second, n, 0.0);
    for (int64_t pixel = 0; pixel < spec_.pixels; pixel += chunk_pixels_) {
      Args chunk = args;
      chunk.x += pixel * n;
      if (chunk.dy != nullptr) chunk.dy += pixel * n;
      chunk.pixels = std::min(chunk_pixels_, spec_.pixels - pixel);
      chunk.sums = v.chunk_sums;
      chunk.second = v.chunk_second;
      std::fill_n(chunk.sums, n, 0.0f);
      std::fill_n(chunk.second, n, 0.0f);
      Run(clones, chunk);
      for (int64_t c = 0; c < n; ++c) v.sums[c] += double{chunk.sums[c]};
      for (int64_t c = 0; c < n; ++c) v.second[c] += double{chunk.second[c]};
    }
  }

  // The image's dx, from its sums in `v`.
  void InputGradient(const Vectors& v, const Args& sums_args, const float* gamma, int64_t image, float* dx) const {
    ForGroups([&](int64_t group, int64_t first, int64_t end) {
      const float inverse = inverse_deviations_[image * spec_.groups + group];
      double sum = 0, product = 0;
      for (int64_t c = first; c < end; ++c) {
        sum += double{gamma[c]} * v.sums[c];
        product += double{gamma[c]} * v.second[c];
        v.scale[c] = gamma[c] * inverse;
      }
      // One factor is that of dx, and two belong to (x - mean), which occurs twice without its inverse deviation.
      const double cube = double{inverse} * inverse * inverse;
      std::fill(v.shift + first, v.shift + end, static_cast<float>(sum * inverse / GroupSize()));
      std::fill(v.slope + first, v.slope + end, static_cast<float>(product * cube / GroupSize()));
    });
    Args args = sums_args;
    args.shift = v.shift;
    args.slope = v.slope;
    args.out = dx + image * image_;
    Run(kInputGradient, args);
  }

  // dgamma and dbeta from the sums of all images. Each channel is added by one thread, in the order of the images.
  void WeightGradients(float* dgamma, float* dbeta) const {
    constexpr int64_t kGrainChannels = 1024;
    const Vectors v = VectorsOf(0);
    ParallelRanges(context_->threads, spec_.channels, kGrainChannels, [&](int64_t begin, int64_t end) {
      std::fill(v.sums + begin, v.sums + end, 0.0);
      std::fill(v.second + begin, v.second + end, 0.0);
      for (int64_t image = 0; image < spec_.batch; ++image) {
        const float* const sums = SumsOf(image);
        const float* const products = sums + spec_.channels;
        const float* const inverses = inverse_deviations_.data() + image * spec_.groups;
        for (int64_t c = begin; c < end; ++c) v.sums[c] += double{sums[c]};
        for (int64_t c = begin; c < end; ++c) v.second[c] += double{products[c]} * inverses[c / group_channels_];
      }
      for (int64_t c = begin; c < end; ++c) {
        dbeta[c] = static_cast<float>(v.sums[c]);
        dgamma[c] = static_cast<float>(v.second[c]);
      }
    });
  }

  template <typename Body>
  void ForGroups(const Body& body) const {
    for (int64_t g = 0; g < spec_.groups; ++g) body(g, g * group_channels_, (g + 1) * group_channels_);
  }
  template <typename Body>
  void ForImages(const Body& body) const {
    ParallelShares(context_->threads, spec_.batch, 1, [&](int share, int64_t begin, int64_t end) {
      const Vectors v = VectorsOf(share);
      for (int64_t image = begin; image < end; ++image) body(v, image);
    });
  }

  CpuContext* const context_;
  const GroupNormSpec spec_;
  const int64_t group_channels_, image_, chunk_pixels_;
  std::vector<float> means_, inverse_deviations_;  // by image and group, of the last Forward
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context, const GroupNormSpec& spec) {
  try {
    auto norm = std::make_unique<CpuGroupNorm>(context, spec);
    RETURN_IF_ERROR(context->scratch.Reserve(norm->scratch_bytes()), "group norm");
    return norm;
  } catch (const std::bad_alloc&) {  // by a vector; no exception may leave this target
    return absl::ResourceExhaustedError(
        absl::StrCat("group norm: no memory for the statistics of ", spec.batch, " x ", spec.groups, " groups"));
  }
}

}  // namespace starring
