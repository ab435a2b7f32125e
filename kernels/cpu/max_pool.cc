// Two ways through a pool:
//
// Halving: 2 x 2 windows, stride 2, no padding, rows of at least 16 output elements. Runs on vectors of 16 channels
// that may reach over the end of a pixel into the next ones, which are written later: so small channel counts (6 in
// LeNet-5) cost one vector, not six scalars. Only the last row of a share is left to the general way.
//
// General: any window; its inner loop runs over channels.
#include "kernels/cpu/max_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/instruction_set.h"
#include "common/status.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector16.h"
#include "kernels/shape_checks.h"

namespace starring {
namespace {

// Images [begin, end) of one run. Index is the type that numbers the elements of a window.
template <typename Index>
struct Args {
  const Pool2dSpec* spec;
  const float* in;  // x, or dy
  float* out;       // y, or dx
  Index* winners;
  int64_t begin, end;
};

// The part of a window that lies on the input, along one axis.
struct Window {
  int64_t start;       // may be negative: padding
  int64_t begin, end;  // inside the input
};

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
    for (int64_t i = h.begin; i < h.end; ++i) {
      for (int64_t j = w.begin; j < w.end; ++j) {
        const float* const x = in + (i * s.in_width + j) * channels;
        const Index place = static_cast<Index>((i - h.start) * s.kernel_width + (j - w.start));
        if (i == h.begin && j == w.begin) {
          std::copy_n(x, channels, y);
          std::fill_n(winner, channels, place);
          continue;
        }
#pragma GCC ivdep
        for (int64_t c = 0; c < channels; ++c) {
          const bool wins = x[c] > y[c] || x[c] != x[c];
          y[c] = wins ? x[c] : y[c];
          winner[c] = wins ? place : winner[c];
        }
      }
    }
  }
}

// dx += dy at the winners of one row of windows.
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
  std::fill(g.out + g.begin * image_elements, g.out + g.end * image_elements, 0.0f);
  for (int64_t image = g.begin; image < g.end; ++image) {
    for (int64_t row = 0; row < s.out_height(); ++row) BackwardRow(g, image, row);
  }
}

bool Halves(const Pool2dSpec& s) {
  return s.kernel_height == 2 && s.kernel_width == 2 && s.stride_height == 2 && s.stride_width == 2 &&
         s.padding_height == 0 && s.padding_width == 0 && s.out_width() * s.channels >= kLanes;
}

// The greatest of four, and which. Scalars in a loop, not vector types: GCC takes a comparison of vectors apart before
// it knows that the function will be inlined into a clone that has registers for it.
[[gnu::always_inline]] inline void ChallengeLanes(const float* a, const float* b, const float* c, const float* d,
                                                  float* y, uint8_t* winner) {
  float greatest[kLanes];
  int32_t places[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    float best = a[lane];
    int32_t place = 0;
    const bool b_wins = (b[lane] > best) | (b[lane] != b[lane]);  // NaN wins, as in PyTorch
    best = b_wins ? b[lane] : best;
    place = b_wins ? 1 : place;
    const bool c_wins = (c[lane] > best) | (c[lane] != c[lane]);
    best = c_wins ? c[lane] : best;
    place = c_wins ? 2 : place;
    const bool d_wins = (d[lane] > best) | (d[lane] != d[lane]);
    best = d_wins ? d[lane] : best;
    place = d_wins ? 3 : place;
    greatest[lane] = best;
    places[lane] = place;
  }
  uint8_t bytes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) bytes[lane] = static_cast<uint8_t>(places[lane]);
  std::memcpy(y, greatest, sizeof(greatest));
  std::memcpy(winner, bytes, sizeof(bytes));
}

[[gnu::always_inline]] inline void HalvingForward(const Args<uint8_t>& g) {
  const Pool2dSpec& s = *g.spec;
  const int64_t channels = s.channels, out_width = s.out_width(), out_height = s.out_height();
  const int64_t in_row = s.in_width * channels;
  for (int64_t image = g.begin; image < g.end; ++image) {
    const int64_t rows = image + 1 == g.end ? out_height - 1 : out_height;
    for (int64_t row = 0; row < rows; ++row) {
      const float* x = g.in + (image * s.in_height + 2 * row) * in_row;
      const int64_t out = (image * out_height + row) * out_width * channels;
      float* y = g.out + out;
      uint8_t* winner = g.winners + out;
      for (int64_t column = 0; column < out_width; ++column) {
        for (int64_t c = 0; c < channels; c += kLanes) {
          ChallengeLanes(x + c, x + channels + c, x + in_row + c, x + in_row + channels + c, y + c, winner + c);
        }
        x += 2 * channels;
        y += channels;
        winner += channels;
      }
    }
  }
  if (g.end > g.begin) ForwardRow(g, g.end - 1, out_height - 1);
}

// dy where the winner is `place`, else 0.
[[gnu::always_inline]] inline void KeepLanes(const float* dy, const uint8_t* winner, int32_t place, float* dx) {
  float kept[kLanes];  // stored as one: overlapping stores must stay in the order of the pixels
  for (int lane = 0; lane < kLanes; ++lane) kept[lane] = winner[lane] == place ? dy[lane] : 0.0f;
  std::memcpy(dx, kept, sizeof(kept));
}

// One row of dx: where `winners` say `left` or `left + 1`. The column that an odd width leaves over gets zeros.
[[gnu::always_inline]] inline void HalvingBackwardRow(const Pool2dSpec& s, const float* dy, const uint8_t* winner,
                                                      int32_t left, float* dx) {
  const int64_t channels = s.channels, out_width = s.out_width();
  for (int64_t column = 0; column < out_width; ++column) {
    for (int64_t c = 0; c < channels; c += kLanes) {
      KeepLanes(dy + c, winner + c, left, dx + c);
    }
    for (int64_t c = 0; c < channels; c += kLanes) {
      KeepLanes(dy + c, winner + c, left + 1, dx + channels + c);
    }
    dy += channels;
    winner += channels;
    dx += 2 * channels;
  }
  if (s.in_width % 2 != 0) std::fill_n(dx, channels, 0.0f);
}

[[gnu::always_inline]] inline void HalvingBackward(const Args<uint8_t>& g) {
  const Pool2dSpec& s = *g.spec;
  const int64_t out_height = s.out_height(), out_row = s.out_width() * s.channels, in_row = s.in_width * s.channels;
  for (int64_t image = g.begin; image < g.end; ++image) {
    const bool last = image + 1 == g.end;
    float* const dx = g.out + image * s.in_height * in_row;
    for (int64_t row = 0; row < (last ? out_height - 1 : out_height); ++row) {
      const int64_t out = (image * out_height + row) * out_row;
      HalvingBackwardRow(s, g.in + out, g.winners + out, 0, dx + 2 * row * in_row);
      HalvingBackwardRow(s, g.in + out, g.winners + out, 2, dx + (2 * row + 1) * in_row);
    }
    // Zeros: the row that an odd height leaves over; on the last image also the rows of the last windows.
    const int64_t done = 2 * (last ? out_height - 1 : out_height);
    std::fill(dx + done * in_row, dx + s.in_height * in_row, 0.0f);
    if (last) BackwardRow(g, image, out_height - 1);
  }
}

using BytesArgs = Args<uint8_t>;
using WordsArgs = Args<int32_t>;
STARRING_DEFINE_CLONES(kHalvingForward, HalvingForward, BytesArgs);
STARRING_DEFINE_CLONES(kHalvingBackward, HalvingBackward, BytesArgs);
STARRING_DEFINE_CLONES(kBytesForward, GeneralForward<uint8_t>, BytesArgs);
STARRING_DEFINE_CLONES(kBytesBackward, GeneralBackward<uint8_t>, BytesArgs);
STARRING_DEFINE_CLONES(kWordsForward, GeneralForward<int32_t>, WordsArgs);
STARRING_DEFINE_CLONES(kWordsBackward, GeneralBackward<int32_t>, WordsArgs);

template <typename Index>
class CpuMaxPool2d : public MaxPool2d {
 public:
  using Clones = void (*const[kInstructionSetCount])(const Args<Index>&);

  CpuMaxPool2d(const CpuContext* context, const Pool2dSpec& spec, const Clones& forward, const Clones& backward,
               AlignedMemory winners)
      : context_(context),
        spec_(spec),
        forward_(forward[static_cast<int>(context->instruction_set)]),
        backward_(backward[static_cast<int>(context->instruction_set)]),
        winners_(std::move(winners)) {}

  void Forward(const float* x, float* y) override { Run(forward_, x, y); }
  void Backward(const float* dy, float* dx) override { Run(backward_, dy, dx); }

 private:
  void Run(void (*pass)(const Args<Index>&), const float* in, float* out) {
    ParallelRanges(context_->threads, spec_.batch, 1, [&](int64_t begin, int64_t end) {
      pass({&spec_, in, out, reinterpret_cast<Index*>(winners_.data()), begin, end});
    });
  }

  const CpuContext* const context_;
  const Pool2dSpec spec_;
  void (*const forward_)(const Args<Index>&);
  void (*const backward_)(const Args<Index>&);
  const AlignedMemory winners_;  // of each output element: which element of its window
};

}  // namespace

absl::StatusOr<std::unique_ptr<MaxPool2d>> CreateCpuMaxPool2d(CpuContext* context, const Pool2dSpec& spec) {
  RETURN_IF_ERROR(CheckShape(spec));
  const bool bytes = spec.kernel_height * spec.kernel_width <= 256;
  const int64_t size_bytes =
      spec.batch * spec.out_height() * spec.out_width() * spec.channels * static_cast<int64_t>(bytes ? 1 : 4);
  AlignedMemory winners(size_bytes);
  if (winners.data() == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("max pool: no memory for ", size_bytes, " bytes"));
  }
  if (!bytes) {
    return std::make_unique<CpuMaxPool2d<int32_t>>(context, spec, kWordsForward, kWordsBackward, std::move(winners));
  }
  if (Halves(spec)) {
    return std::make_unique<CpuMaxPool2d<uint8_t>>(context, spec, kHalvingForward, kHalvingBackward,
                                                   std::move(winners));
  }
  return std::make_unique<CpuMaxPool2d<uint8_t>>(context, spec, kBytesForward, kBytesBackward, std::move(winners));
}

}  // namespace starring
