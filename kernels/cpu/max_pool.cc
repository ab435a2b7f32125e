// Max pooling on NHWC float32. With AVX2 and AVX-512, 2 x 2 windows with stride 2 have vectors of their own
// (kernels/cpu/halving_pool.h); for every other window, and without AVX2, the inner loop runs over channels.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/instruction_set.h"
#include "common/base/memory.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/cpu/halving_pool.h"

namespace starring {
namespace {

// Images [begin, end) of one run. Index numbers the elements of a window: a byte where that suffices, because forward
// writes one for each output and backward reads it.
template <typename Index>
struct Args {
  const Pool2dSpec* spec;
  const float* in;  // x, or dy
  float* out;       // y, or dx
  Index* winners;
  int64_t begin, end;
};

// The part of a window that is on the input and not on padding, along one axis.
struct Window {
  int64_t start;       // may be negative: padding
  int64_t begin, end;  // inside the input
};

// REQUIRES: padding < kernel (CheckShape), so that every window has a place on the input.
[[gnu::always_inline]] inline Window WindowAt(int64_t out, int64_t stride, int64_t padding, int64_t kernel,
                                              int64_t in) {
  const int64_t start = out * stride - padding;
  return {start, std::max<int64_t>(start, 0), std::min(start + kernel, in)};
}

template <typename Index>
[[gnu::always_inline]] inline void ForwardRow(const Args<Index>& g, int64_t image, int64_t row) {
  const Pool2dSpec& s = *g.spec;
  const int64_t channels = s.channels;
  const int64_t out_width = s.out_width();
  const float* const in = g.in + image * s.in_height * s.in_width * channels;
  const int64_t out_row = (image * s.out_height() + row) * out_width * channels;
  const Window h = WindowAt(row, s.stride_height, s.padding_height, s.kernel_height, s.in_height);
  for (int64_t column = 0; column < out_width; ++column) {
    const Window w = WindowAt(column, s.stride_width, s.padding_width, s.kernel_width, s.in_width);
    float* const y = g.out + out_row + column * channels;
    Index* const winner = g.winners + out_row + column * channels;
    // The inner loop runs over channels, so that it reads and writes neighbours, whatever the window. y holds the best
    // so far.
    for (int64_t i = h.begin; i < h.end; ++i) {
      for (int64_t j = w.begin; j < w.end; ++j) {
        const float* const x = in + (i * s.in_width + j) * channels;
        const Index place = static_cast<Index>((i - h.start) * s.kernel_width + (j - w.start));
        // The first input wins whatever it is. Beginning with -infinity instead would leave a window of -infinities
        // without a winner.
        if (i == h.begin && j == w.begin) {
          std::copy_n(x, channels, y);
          std::fill_n(winner, channels, place);
          continue;
        }
#pragma GCC ivdep
        for (int64_t c = 0; c < channels; ++c) {
          // Greater, so that of equal maxima the first wins; or NaN, which must reach the trainer's check.
          // Both stores are unconditional: a branch would keep the compiler from making vectors of the loop.
          const bool wins = x[c] > y[c] || x[c] != x[c];
          y[c] = wins ? x[c] : y[c];
          winner[c] = wins ? place : winner[c];
        }
      }
    }
  }
}

// dx += dy at the winners of one row of windows. Each channel has a winner of its own, so elements are added one by
// one. Where windows overlap, two outputs may have one winner. One thread treats all windows of an image, in order, so
// that no addition is lost and the order of sums is fixed.
template <typename Index>
[[gnu::always_inline]] inline void BackwardRow(const Args<Index>& g, int64_t image, int64_t row) {
  const Pool2dSpec& s = *g.spec;
  const int64_t channels = s.channels;
  const int64_t out_width = s.out_width();
  float* const dx = g.out + image * s.in_height * s.in_width * channels;
  const int64_t out_row = (image * s.out_height() + row) * out_width * channels;
  for (int64_t column = 0; column < out_width; ++column) {
    const float* const dy = g.in + out_row + column * channels;
    const Index* const winner = g.winners + out_row + column * channels;
    const int64_t top = row * s.stride_height - s.padding_height;
    const int64_t left = column * s.stride_width - s.padding_width;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t i = top + winner[c] / s.kernel_width;
      const int64_t j = left + winner[c] % s.kernel_width;
      dx[(i * s.in_width + j) * channels + c] += dy[c];
    }
  }
}

template <typename Index>
[[gnu::always_inline]] inline void GeneralForward(const Args<Index>& g) {
  for (int64_t image = g.begin; image < g.end; ++image) {
    for (int64_t row = 0; row < g.spec->out_height(); ++row) ForwardRow(g, image, row);
  }
}

template <typename Index>
[[gnu::always_inline]] inline void GeneralBackward(const Args<Index>& g) {
  const Pool2dSpec& s = *g.spec;
  const int64_t image_elements = s.in_height * s.in_width * s.channels;
  // A pixel that no window chose has the gradient 0.
  std::fill(g.out + g.begin * image_elements, g.out + g.end * image_elements, 0.0f);
  for (int64_t image = g.begin; image < g.end; ++image) {
    for (int64_t row = 0; row < s.out_height(); ++row) BackwardRow(g, image, row);
  }
}

using BytesArgs = Args<uint8_t>;
using WordsArgs = Args<int32_t>;
STARRING_DEFINE_CLONES(kBytesForward, GeneralForward<uint8_t>, BytesArgs);
STARRING_DEFINE_CLONES(kBytesBackward, GeneralBackward<uint8_t>, BytesArgs);
STARRING_DEFINE_CLONES(kWordsForward, GeneralForward<int32_t>, WordsArgs);
STARRING_DEFINE_CLONES(kWordsBackward, GeneralBackward<int32_t>, WordsArgs);

template <typename Index>
class CpuMaxPool2d : public FloatOperation {
 public:
  using Clones = void (*const[kInstructionSetCount])(const Args<Index>&);

  CpuMaxPool2d(const CpuContext* context, const Pool2dSpec& spec, const Clones& forward, const Clones& backward,
               AlignedMemory winners)
      : context_(context),
        spec_(spec),
        forward_(forward[static_cast<int>(context->instruction_set)]),
        backward_(backward[static_cast<int>(context->instruction_set)]),
        winners_(std::move(winners)) {}

  void Forward(const float* x, const float*, const float*, float* y) override { Run(forward_, x, y); }
  void Backward(const float*, const float*, const float*, float* dy, float* dx, float*, float*) override {
    Run(backward_, dy, dx);
  }

 private:
  void Run(void (*pass)(const Args<Index>&), const float* in, float* out) {
    // Shares are whole images: only windows of one image can overlap.
    ParallelRanges(context_->threads, spec_.batch, 1, [&](int64_t begin, int64_t end) {
      pass({&spec_, in, out, reinterpret_cast<Index*>(winners_.data()), begin, end});
    });
  }

  const CpuContext* const context_;
  const Pool2dSpec spec_;
  void (*const forward_)(const Args<Index>&);
  void (*const backward_)(const Args<Index>&);
  const AlignedMemory winners_;  // for each output, the number of the winning element of its window
};

// Such windows do not overlap, so backward adds nothing: each element of dx in a window is stored once.
bool Halves(const Pool2dSpec& s) {
  return s.kernel_height == 2 && s.kernel_width == 2 && s.stride_height == 2 && s.stride_width == 2 &&
         s.padding_height == 0 && s.padding_width == 0;
}

HalvingPool HalvingPoolOf(const Pool2dSpec& s, InstructionSet instruction_set) {
  return {.in_height = s.in_height,
          .in_width = s.in_width,
          .channels = s.channels,
          .lanes = instruction_set == InstructionSet::kAvx512 ? 16 : 8};
}

class HalvingMaxPool2d : public FloatOperation {
 public:
  HalvingMaxPool2d(const CpuContext* context, const Pool2dSpec& spec, AlignedMemory winners)
      : context_(context),
        spec_(spec),
        pool_(HalvingPoolOf(spec, context->instruction_set)),
        winners_(std::move(winners)) {}

  void Forward(const float* x, const float*, const float*, float* y) override {
    ForImages([&](int64_t image, HalvingPool::Winners* winners) {
      HalvingForward(pool_, x + image * InImage(), y + image * OutImage(), winners);
    });
  }
  void Backward(const float*, const float*, const float*, float* dy, float* dx, float*, float*) override {
    ForImages([&](int64_t image, const HalvingPool::Winners* winners) {
      HalvingBackward(pool_, dy + image * OutImage(), winners, dx + image * InImage());
    });
  }

 private:
  int64_t InImage() const { return spec_.in_height * spec_.in_width * spec_.channels; }
  int64_t OutImage() const { return spec_.out_height() * spec_.out_width() * spec_.channels; }

  template <typename Pass>
  void ForImages(const Pass& pass) {
    ParallelRanges(context_->threads, spec_.batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) {
        pass(image, reinterpret_cast<HalvingPool::Winners*>(winners_.data()) + image * pool_.winners_per_image());
      }
    });
  }

  const CpuContext* const context_;
  const Pool2dSpec spec_;
  const HalvingPool pool_;
  const AlignedMemory winners_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context, const Pool2dSpec& spec) {
  // A place in a window of up to 256 places fits in a byte. The choice does not change bits.
  const bool bytes = spec.kernel_height * spec.kernel_width <= 256;
  const bool halves = Halves(spec) && context->instruction_set != InstructionSet::kBaseline;
  const int64_t size_bytes =
      halves ? spec.batch * HalvingPoolOf(spec, context->instruction_set).winners_per_image() *
                   static_cast<int64_t>(sizeof(HalvingPool::Winners))
             : spec.batch * spec.out_height() * spec.out_width() * spec.channels * static_cast<int64_t>(bytes ? 1 : 4);
  AlignedMemory winners(size_bytes);
  if (winners.data() == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("max pool: no memory for ", size_bytes, " bytes"));
  }
  if (!bytes) {
    return std::make_unique<CpuMaxPool2d<int32_t>>(context, spec, kWordsForward, kWordsBackward, std::move(winners));
  }
  if (halves) return std::make_unique<HalvingMaxPool2d>(context, spec, std::move(winners));
  return std::make_unique<CpuMaxPool2d<uint8_t>>(context, spec, kBytesForward, kBytesBackward, std::move(winners));
}

}  // namespace starring
