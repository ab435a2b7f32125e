// Words: an image is one sample. A plane is one channel of an image, contiguous. A window row is what one output column
// sees of one input row: kernel_width * in_channels floats, contiguous in NHWC and in the weights alike, which is why
// no im2col is needed.
//
// Lanes run along one of two axes:
//   kChannels  output channels. Good from 16 of them on; 6 would leave 10 of 16 lanes empty.
//   kColumns   output columns, for few channels and stride 1: x is taken apart into planes, outputs are transposed
//   back.
// dx always has lanes along window rows: for every input row the window rows of all output columns are computed and
// then added up where they overlap.
//
// Threads share the batch. Sums over the batch (dweight, dbias) are kept per share and added in the order of shares.
#include "kernels/cpu/tiled_conv2d.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_avx512.h"

namespace starring {
namespace {

enum class Lanes { kChannels, kColumns };

// Per 16 outputs, what a tile computes for nothing; the transposition of kColumns costs about as much as 15 % of it.
Lanes ChooseLanes(const Conv2dSpec& s) {
  if (s.stride_width != 1) return Lanes::kChannels;
  const double channels = static_cast<double>(RoundUp(s.out_channels, 16)) / static_cast<double>(s.out_channels);
  const double columns = static_cast<double>(RoundUp(s.out_width(), 16)) / static_cast<double>(s.out_width());
  return channels <= 1.15 * columns ? Lanes::kChannels : Lanes::kColumns;
}

// Lays regions of floats out one after another.
class Regions {
 public:
  int64_t Add(int64_t floats) {
    const int64_t offset = floats_;
    floats_ += RoundUp(floats, 16);
    return offset;
  }
  int64_t floats() const { return floats_; }

 private:
  int64_t floats_ = 0;
};

class TiledConv2d : public Conv2d {
 public:
  TiledConv2d(CpuContext* context, const Conv2dSpec& spec);

  void Forward(const float* x, const float* weight, const float* bias, float* y) override;
  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override;

 private:
  // The scratch of one share, in floats from its start.
  struct Plan {
    int64_t image = 0;    // x with padding: NHWC for kChannels, planes for kColumns
    int64_t planes = 0;   // kColumns: dy as planes; forward: one row of y as (channel, column)
    int64_t windows = 0;  // dx: window rows of one input row
    int64_t dweight = 0;  // kChannels: (kernel, in, out padded); kColumns: lanes of Dots
    int64_t dbias = 0;
    int64_t floats = 0;  // of one share
  };
  struct Share {
    float *image, *planes, *windows, *dweight, *dbias;
  };
  Share ShareAt(int share) const;
  // Zeroes the padding, which Padded then leaves alone.
  void ClearImage(const Share& share) const;

  // `x` of one image with its padding; x itself where there is nothing to do.
  const float* Padded(const float* x, const Share& share) const;

  void ForwardChannels(const float* image, const float* packed, const float* bias, float* y) const;
  void ForwardColumns(const float* image, const float* weight, const float* bias, const Share& share, float* y) const;
  void WeightGradientChannels(const float* image, const float* dy, const Share& share) const;
  void WeightGradientColumns(const float* image, const float* dy, const Share& share) const;
  void InputGradientOf(const float* weight, const float* dy, const Share& share, float* dx) const;
  void FinishWeightGradient(int shares, float* dweight) const;

  CpuContext* const context_;
  const Conv2dSpec spec_;
  const Lanes lanes_;
  const int64_t out_height_, out_width_, out_padded_;
  const int64_t height_, width_;     // of an image with padding
  const int64_t window_row_;         // kernel_width * in_channels
  const int64_t kernel_;             // kernel_height * window_row
  const int64_t x_image_, y_image_;  // elements
  const int64_t sums_;               // floats of a share's dweight
  Plan plan_;
};

TiledConv2d::TiledConv2d(CpuContext* context, const Conv2dSpec& spec)
    : context_(context),
      spec_(spec),
      lanes_(ChooseLanes(spec)),
      out_height_(spec.out_height()),
      out_width_(spec.out_width()),
      out_padded_(RoundUp(spec.out_channels, 16)),
      height_(spec.in_height + 2 * spec.padding_height),
      width_(spec.in_width + 2 * spec.padding_width),
      window_row_(spec.kernel_width * spec.in_channels),
      kernel_(spec.kernel_height * window_row_),
      x_image_(spec.in_height * spec.in_width * spec.in_channels),
      y_image_(out_height_ * out_width_ * spec.out_channels),
      sums_(lanes_ == Lanes::kChannels ? kernel_ * out_padded_ : kernel_ * spec.out_channels * 16) {
  Regions regions;
  plan_.image = regions.Add(height_ * width_ * spec.in_channels);
  plan_.planes = regions.Add(lanes_ == Lanes::kColumns ? y_image_ : 0);
  plan_.windows = regions.Add(out_width_ * (window_row_ + 2 * kWindowMargin));
  plan_.dweight = regions.Add(sums_);
  plan_.dbias = regions.Add(spec.out_channels);
  plan_.floats = regions.floats();
  // After the shares: weights packed for kChannels.
  context->scratch.Reserve(static_cast<int64_t>(sizeof(float)) *
                           (plan_.floats * context->threads + kernel_ * out_padded_));
}

TiledConv2d::Share TiledConv2d::ShareAt(int share) const {
  float* const base = reinterpret_cast<float*>(context_->scratch.data()) + plan_.floats * share;
  return {base + plan_.image, base + plan_.planes, base + plan_.windows, base + plan_.dweight, base + plan_.dbias};
}

void TiledConv2d::ClearImage(const Share& share) const {
  std::fill_n(share.image, height_ * width_ * spec_.in_channels, 0.0f);
}

const float* TiledConv2d::Padded(const float* x, const Share& share) const {
  const int64_t row = spec_.in_width * spec_.in_channels;
  if (lanes_ == Lanes::kChannels || spec_.in_channels == 1) {
    if (spec_.padding_height == 0 && spec_.padding_width == 0) return x;
    for (int64_t h = 0; h < spec_.in_height; ++h) {
      std::memcpy(share.image + ((h + spec_.padding_height) * width_ + spec_.padding_width) * spec_.in_channels,
                  x + h * row, static_cast<size_t>(row) * sizeof(float));
    }
    return share.image;
  }
  for (int64_t h = 0; h < spec_.in_height; ++h) {
    PixelsToPlanes(x + h * row, spec_.in_channels, spec_.in_width,
                   share.image + (h + spec_.padding_height) * width_ + spec_.padding_width, height_ * width_);
  }
  return share.image;
}

void TiledConv2d::ForwardChannels(const float* image, const float* packed, const float* bias, float* y) const {
  const int64_t row = width_ * spec_.in_channels;
  for (int64_t h = 0; h < out_height_; ++h) {
    RunTiles({.a = image + h * spec_.stride_height * row,
              .a_inner = row,
              .a_row = spec_.stride_width * spec_.in_channels,
              .a_k = 1,
              .b = packed,
              .b_inner = window_row_ * out_padded_,
              .b_k = out_padded_,
              .inner = spec_.kernel_height,
              .depth = window_row_,
              .init = bias,
              .c = y + h * out_width_ * spec_.out_channels,
              .c_row = spec_.out_channels,
              .relu = spec_.activation == Activation::kRelu},
             out_width_, spec_.out_channels);
  }
}

void TiledConv2d::ForwardColumns(const float* image, const float* weight, const float* bias, const Share& share,
                                 float* y) const {
  for (int64_t h = 0; h < out_height_; ++h) {
    RunTiles({.a = weight,
              .a_outer = 1,
              .a_inner = window_row_,
              .a_row = kernel_,
              .a_k = spec_.in_channels,
              .b = image + h * spec_.stride_height * width_,
              .b_outer = height_ * width_,
              .b_inner = width_,
              .b_k = 1,
              .outer = spec_.in_channels,
              .inner = spec_.kernel_height,
              .depth = spec_.kernel_width,
              .row_init = bias,
              .c = share.planes,
              .c_row = out_width_,
              .relu = spec_.activation == Activation::kRelu},
             spec_.out_channels, out_width_);
    PlanesToPixels(share.planes, out_width_, spec_.out_channels, out_width_, y + h * out_width_ * spec_.out_channels);
  }
}

void TiledConv2d::Forward(const float* x, const float* weight, const float* bias, float* y) {
  float* const packed = ShareAt(context_->threads).image;  // (kernel, out padded)
  if (lanes_ == Lanes::kChannels) {
    Transpose(weight, kernel_, spec_.out_channels, kernel_, packed, out_padded_);
  }
  ParallelShares(context_->threads, spec_.batch, 1, [&](int index, int64_t begin, int64_t end) {
    const Share share = ShareAt(index);
    ClearImage(share);
    for (int64_t n = begin; n < end; ++n) {
      const float* const image = Padded(x + n * x_image_, share);
      if (lanes_ == Lanes::kChannels) {
        ForwardChannels(image, packed, bias, y + n * y_image_);
      } else {
        ForwardColumns(image, weight, bias, share, y + n * y_image_);
      }
    }
  });
}

// dweight(kernel element, out) += x^T dy over all output positions of one image.
void TiledConv2d::WeightGradientChannels(const float* image, const float* dy, const Share& share) const {
  const int64_t row = width_ * spec_.in_channels;
  for (int64_t kh = 0; kh < spec_.kernel_height; ++kh) {
    float* const sums = share.dweight + kh * window_row_ * out_padded_;
    RunTiles({.a = image + kh * row,
              .a_inner = spec_.stride_height * row,
              .a_row = 1,
              .a_k = spec_.stride_width * spec_.in_channels,
              .b = dy,
              .b_inner = out_width_ * spec_.out_channels,
              .b_k = spec_.out_channels,
              .inner = out_height_,
              .depth = out_width_,
              .init = sums,
              .init_row = out_padded_,
              .c = sums,
              .c_row = out_padded_},
             window_row_, spec_.out_channels);
  }
}

// dweight(in, kernel row, out, kernel column, lane) += products of dy and x, row by row.
void TiledConv2d::WeightGradientColumns(const float* image, const float* dy, const Share& share) const {
  const int64_t plane = out_height_ * out_width_;
  PixelsToPlanes(dy, spec_.out_channels, plane, share.planes, plane);
  for (int64_t ic = 0; ic < spec_.in_channels; ++ic) {
    for (int64_t kh = 0; kh < spec_.kernel_height; ++kh) {
      RunDots({.a = share.planes,
               .a_row = plane,
               .a_line = out_width_,
               .b = image + (ic * height_ + kh) * width_,
               .b_row = 1,
               .b_line = spec_.stride_height * width_,
               .a_rows = spec_.out_channels,
               .b_rows = spec_.kernel_width,
               .lines = out_height_,
               .width = out_width_,
               .sums = share.dweight + (ic * spec_.kernel_height + kh) * spec_.out_channels * spec_.kernel_width * 16});
    }
  }
}

void TiledConv2d::InputGradientOf(const float* weight, const float* dy, const Share& share, float* dx) const {
  const int64_t dy_row = out_width_ * spec_.out_channels;
  const int64_t dx_row = spec_.in_width * spec_.in_channels;
  for (int64_t h = 0; h < spec_.in_height; ++h) {
    // Kernel rows kh, with output row (h + padding - kh) / stride, that reach input row h: ascending kh by the stride,
    // descending output rows by one.
    const int64_t reach = h + spec_.padding_height;
    const int64_t first_row = std::min(reach / spec_.stride_height, out_height_ - 1);
    const int64_t first_kh = reach - first_row * spec_.stride_height;
    const int64_t rows = first_kh >= spec_.kernel_height
                             ? 0
                             : std::min(first_row + 1, (spec_.kernel_height - 1 - first_kh) / spec_.stride_height + 1);
    if (rows <= 0) {
      std::fill_n(dx + h * dx_row, dx_row, 0.0f);
      continue;
    }
    RunTiles({.a = dy + first_row * dy_row,
              .a_inner = -dy_row,
              .a_row = spec_.out_channels,
              .a_k = 1,
              .b = weight + first_kh * window_row_,
              .b_inner = spec_.stride_height * window_row_,
              .b_k = kernel_,
              .inner = rows,
              .depth = spec_.out_channels,
              .c = share.windows + kWindowMargin,
              .c_row = window_row_ + 2 * kWindowMargin},
             out_width_, window_row_);
    AddWindows({.in = share.windows,
                .windows = out_width_,
                .width = window_row_,
                .step = spec_.stride_width * spec_.in_channels,
                .skip = spec_.padding_width * spec_.in_channels,
                .out = dx + h * dx_row,
                .count = dx_row});
  }
}

void TiledConv2d::FinishWeightGradient(int shares, float* dweight) const {
  const Share first = ShareAt(0);
  for (int s = 1; s < shares; ++s) {
    const Share next = ShareAt(s);
    for (int64_t i = 0; i < sums_; ++i) first.dweight[i] += next.dweight[i];
  }
  if (lanes_ == Lanes::kChannels) {
    Transpose(first.dweight, out_padded_, kernel_, spec_.out_channels, dweight, kernel_);
    return;
  }
  const float* sums = first.dweight;
  for (int64_t ic = 0; ic < spec_.in_channels; ++ic) {
    for (int64_t kh = 0; kh < spec_.kernel_height; ++kh) {
      for (int64_t oc = 0; oc < spec_.out_channels; ++oc) {
        for (int64_t kw = 0; kw < spec_.kernel_width; ++kw, sums += 16) {
          dweight[oc * kernel_ + kh * window_row_ + kw * spec_.in_channels + ic] = SumOfLanes(sums);
        }
      }
    }
  }
}

void TiledConv2d::Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                           float* dbias) {
  const bool masks = spec_.activation == Activation::kRelu;
  ParallelShares(context_->threads, spec_.batch, 1, [&](int index, int64_t begin, int64_t end) {
    const Share share = ShareAt(index);
    ClearImage(share);
    std::fill_n(share.windows, out_width_ * (window_row_ + 2 * kWindowMargin), 0.0f);
    std::fill_n(share.dweight, sums_, 0.0f);
    std::fill_n(share.dbias, spec_.out_channels, 0.0f);
    for (int64_t n = begin; n < end; ++n) {
      float* const dy_image = dy + n * y_image_;
      MaskAndSum(masks ? y + n * y_image_ : nullptr, dy_image, out_height_ * out_width_, spec_.out_channels,
                 dbias == nullptr ? nullptr : share.dbias);
      const float* const image = Padded(x + n * x_image_, share);
      if (lanes_ == Lanes::kChannels) {
        WeightGradientChannels(image, dy_image, share);
      } else {
        WeightGradientColumns(image, dy_image, share);
      }
      if (spec_.input_gradient == InputGradient::kNeeded) InputGradientOf(weight, dy_image, share, dx + n * x_image_);
    }
  });
  const int shares = static_cast<int>(std::min<int64_t>(context_->threads, spec_.batch));
  FinishWeightGradient(shares, dweight);
  if (dbias == nullptr) return;
  std::fill_n(dbias, spec_.out_channels, 0.0f);
  for (int s = 0; s < shares; ++s) {
    for (int64_t c = 0; c < spec_.out_channels; ++c) dbias[c] += ShareAt(s).dbias[c];
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Conv2d>> CreateTiledConv2d(CpuContext* context, const Conv2dSpec& spec) {
  return std::make_unique<TiledConv2d>(context, spec);
}

}  // namespace starring
