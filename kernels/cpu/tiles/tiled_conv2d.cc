// Convolutions on our tiles (kernels/cpu/tiles/tiles.h), without im2col.
//
// Words: an image is one sample. A *window row* is the part of one input row that one output column sees: kernel_width
// * in_channels floats. It is contiguous in NHWC and has the same order in the weights, so the tiles read it where it
// is.
//
// Lanes run along one of two axes:
//   kChannels  output channels: good from 16 of them on. 6 channels would leave 10 of 16 lanes empty.
//   kRow       columns and channels of an output row (kernels/cpu/tiles/row_lanes_avx512.h): for few channels and
//   stride 1,
//              with AVX-512 only.
// dx always has lanes along window rows. For each input row, the window rows of all output columns are computed, and
// then added up where they overlap (Tiles::add_windows).
//
// Threads share the batch. Every share keeps its own sums over its images (dweight, dbias), and the shares are added in
// their order, so that the bits do not depend on which thread ends first.
#include <algorithm>
#include <cstring>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/cpu/tiles/row_lanes_avx512.h"
#include "kernels/cpu/tiles/tiles.h"

namespace starring {
namespace {

enum class Lanes { kChannels, kRow };

// The choice with the least work per useful output: empty lanes are work for nothing, and kRow has one permutation more
// for every `rows` multiply-adds. A rule, not a timing: the choice decides bits.
Lanes ChooseLanes(const Conv2dSpec& s, InstructionSet set) {
  if (set != InstructionSet::kAvx512 || s.stride_width != 1 || s.stride_height != 1) return Lanes::kChannels;
  const auto waste = [](int64_t count) { return static_cast<double>(RoundUp(count, 16)) / static_cast<double>(count); };
  const double rows = static_cast<double>(std::min<int64_t>(s.kernel_height, kRowPartMax));
  const double row = waste(s.out_width() * s.out_channels) * (1 + 0.5 / rows);
  return waste(s.out_channels) <= row ? Lanes::kChannels : Lanes::kRow;
}

// A part (row_lanes_avx512.h): kernel rows and columns from kh and kw on, of one input channel.
struct KernelPart {
  int64_t channel, kh, kw;
  int kernel_height, kernel_width;
};

// Cuts the kernel in parts of at most kRowPartMax rows and columns, as evenly as it goes.
std::vector<KernelPart> PartsOf(const Conv2dSpec& s) {
  std::vector<KernelPart> parts;
  const int64_t down = (s.kernel_height + kRowPartMax - 1) / kRowPartMax;
  const int64_t across = (s.kernel_width + kRowPartMax - 1) / kRowPartMax;
  // Packed weights and a share's sums are in the order of the parts, and every pass walks them in this order.
  for (int64_t channel = 0; channel < s.in_channels; ++channel) {
    for (int64_t i = 0; i < down; ++i) {
      const int64_t kh = s.kernel_height * i / down, kh_end = s.kernel_height * (i + 1) / down;
      for (int64_t j = 0; j < across; ++j) {
        const int64_t kw = s.kernel_width * j / across, kw_end = s.kernel_width * (j + 1) / across;
        parts.push_back({channel, kh, kw, static_cast<int>(kh_end - kh), static_cast<int>(kw_end - kw)});
      }
    }
  }
  return parts;
}

// Lays regions of floats out one after another, each on a boundary of 64 bytes.
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

class TiledConv2d : public FloatOperation {
 public:
  TiledConv2d(CpuContext* context, const Conv2dSpec& spec);

  int64_t scratch_bytes() const { return scratch_bytes_; }

  void Forward(const float* x, const float* weight, const float* bias, float* y) override;
  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override;

 private:
  // Where a share's regions begin in its scratch memory, in floats.
  struct Plan {
    int64_t image = 0;    // x with padding; kRow: channel by channel, padded to the sides only
    int64_t windows = 0;  // dx: window rows of one input row
    int64_t dweight = 0;  // kChannels: (kernel, in, out padded); kRow: (part, phase, kernel element, lane)
    int64_t dbias = 0;    // kChannels: (out); kRow: (phase, lane)
    int64_t floats = 0;   // of one share
  };
  struct Share {
    float *image, *windows, *dweight, *dbias;
  };
  Share ShareAt(int share) const;
  // Zeroes the padding once per call; Padded then writes between it, image after image.
  void ClearImage(const Share& share) const;

  // One image with its padding, in the share's memory; `x` itself where there is no padding.
  const float* Padded(const float* x, const Share& share) const;
  void SeparateChannels(const float* x, float* image) const;

  // kRow: weights (part, kernel element, out) and then the bias, each with its channels repeated.
  void RepeatChannels(const float* weight, const float* bias, float* packed) const;
  RowPart PartOf(const KernelPart& part, const float* image) const;

  void ForwardChannels(const float* image, const float* packed, const float* bias, float* y) const;
  void ForwardRow(const float* image, const float* packed, float* y) const;
  void WeightGradientChannels(const float* image, const float* dy, const Share& share) const;
  void WeightGradientRow(const float* image, const float* y, const float* dy, const Share& share) const;
  void InputGradientOf(const float* weight, const float* dy, const Share& share, float* dx) const;
  void FinishChannels(float* dweight, float* dbias) const;
  void FinishRow(float* dweight, float* dbias) const;

  CpuContext* const context_;
  const Tiles& tiles_;
  const Conv2dSpec spec_;
  const Lanes lanes_;
  const int64_t out_height_, out_width_, out_padded_;
  const int64_t height_, width_;     // of an image with padding
  const int64_t window_row_;         // kernel_width * in_channels
  const int64_t kernel_;             // kernel_height * window_row
  const int64_t x_image_, y_image_;  // elements
  const int64_t x_row_;              // kRow: floats from row to row of one channel of the image
  const int64_t image_floats_;
  const int64_t phases_;    // kRow
  const int64_t repeated_;  // kRow: floats of out_channels, repeated
  const std::vector<KernelPart> parts_;
  const int64_t weight_sums_, bias_sums_;  // floats of a share's dweight and dbias
  Plan plan_;
  int64_t scratch_bytes_ = 0;
};

TiledConv2d::TiledConv2d(CpuContext* context, const Conv2dSpec& spec)
    : context_(context),
      tiles_(TilesOf(context->instruction_set)),
      spec_(spec),
      lanes_(ChooseLanes(spec, context->instruction_set)),
      out_height_(spec.out_height()),
      out_width_(spec.out_width()),
      out_padded_(RoundUp(spec.out_channels, 16)),
      height_(spec.in_height + 2 * spec.padding_height),
      width_(spec.in_width + 2 * spec.padding_width),
      window_row_(spec.kernel_width * spec.in_channels),
      kernel_(spec.kernel_height * window_row_),
      x_image_(spec.in_height * spec.in_width * spec.in_channels),
      y_image_(out_height_ * out_width_ * spec.out_channels),
      // A vector of 16 pixels may begin at the last column of a row: 15 floats more keep it inside the row.
      x_row_(RoundUp(width_ + 15, 16)),
      image_floats_(spec.in_channels * (lanes_ == Lanes::kRow ? spec.in_height * x_row_ : height_ * width_)),
      phases_(RowPhases(spec.out_channels)),
      // A vector may begin at any channel and then needs the 15 after it.
      repeated_(spec.out_channels + 15),
      parts_(lanes_ == Lanes::kRow ? PartsOf(spec) : std::vector<KernelPart>()),
      weight_sums_(kernel_ * (lanes_ == Lanes::kRow ? phases_ * 16 : out_padded_)),
      bias_sums_(lanes_ == Lanes::kRow ? phases_ * 16 : spec.out_channels) {
  Regions regions;
  plan_.image = regions.Add(image_floats_);
  plan_.windows = regions.Add(out_width_ * (window_row_ + 2 * kWindowMargin));
  plan_.dweight = regions.Add(weight_sums_);
  plan_.dbias = regions.Add(bias_sums_);
  plan_.floats = regions.floats();
  // After the shares: packed weights.
  const int64_t packed = lanes_ == Lanes::kRow ? (kernel_ + 1) * repeated_ : kernel_ * out_padded_;
  scratch_bytes_ = static_cast<int64_t>(sizeof(float)) * (plan_.floats * context->threads + packed);
}

TiledConv2d::Share TiledConv2d::ShareAt(int share) const {
  float* const base = reinterpret_cast<float*>(context_->scratch.data()) + plan_.floats * share;
  return {base + plan_.image, base + plan_.windows, base + plan_.dweight, base + plan_.dbias};
}

// The scratch memory is shared with other operations, whose numbers are in it when a call begins.
void TiledConv2d::ClearImage(const Share& share) const { std::fill_n(share.image, image_floats_, 0.0f); }

void TiledConv2d::SeparateChannels(const float* x, float* image) const {
  for (int64_t c = 0; c < spec_.in_channels; ++c) {
    for (int64_t h = 0; h < spec_.in_height; ++h) {
      const float* const from = x + h * spec_.in_width * spec_.in_channels + c;
      float* const to = image + (c * spec_.in_height + h) * x_row_ + spec_.padding_width;
      // There is nothing to gather: the rows of the only channel are contiguous.
      if (spec_.in_channels == 1) {
        std::memcpy(to, from, static_cast<size_t>(spec_.in_width) * sizeof(float));
      } else {
        for (int64_t w = 0; w < spec_.in_width; ++w) to[w] = from[w * spec_.in_channels];
      }
    }
  }
}

const float* TiledConv2d::Padded(const float* x, const Share& share) const {
  if (lanes_ == Lanes::kRow) {
    SeparateChannels(x, share.image);
    return share.image;
  }
  if (spec_.padding_height == 0 && spec_.padding_width == 0) return x;
  const int64_t row = spec_.in_width * spec_.in_channels;
  for (int64_t h = 0; h < spec_.in_height; ++h) {
    std::memcpy(share.image + ((h + spec_.padding_height) * width_ + spec_.padding_width) * spec_.in_channels,
                x + h * row, static_cast<size_t>(row) * sizeof(float));
  }
  return share.image;
}

// packed[c] of a tap is its weight for output channel c % out_channels: a vector that begins at any channel is one
// load. This is done once per call; every image and thread then reads it.
void TiledConv2d::RepeatChannels(const float* weight, const float* bias, float* packed) const {
  for (const KernelPart& part : parts_) {
    for (int64_t kh = part.kh; kh < part.kh + part.kernel_height; ++kh) {
      for (int64_t kw = part.kw; kw < part.kw + part.kernel_width; ++kw, packed += repeated_) {
        const float* const from = weight + (kh * spec_.kernel_width + kw) * spec_.in_channels + part.channel;
        for (int64_t c = 0; c < spec_.out_channels; ++c) packed[c] = from[c * kernel_];
        for (int64_t c = spec_.out_channels; c < repeated_; ++c) packed[c] = packed[c - spec_.out_channels];
      }
    }
  }
  for (int64_t c = 0; c < repeated_; ++c) packed[c] = bias == nullptr ? 0.0f : bias[c % spec_.out_channels];
}

// Rows above and below the image are not stored: `top` says where it begins, and the loops skip what is outside.
RowPart TiledConv2d::PartOf(const KernelPart& part, const float* image) const {
  return {.out_height = out_height_,
          .out_width = out_width_,
          .channels = spec_.out_channels,
          .x = image + part.channel * spec_.in_height * x_row_ + part.kw,
          .x_row = x_row_,
          .x_height = spec_.in_height,
          .top = spec_.padding_height - part.kh,
          .kernel_height = part.kernel_height,
          .kernel_width = part.kernel_width};
}

void TiledConv2d::ForwardChannels(const float* image, const float* packed, const float* bias, float* y) const {
  const int64_t row = width_ * spec_.in_channels;
  for (int64_t h = 0; h < out_height_; ++h) {
    // Columns of C are output channels, rows are the output row's columns. A walks over the window row (k) and from
    // kernel row to kernel row (inner), so the whole window is summed while its output stays in registers.
    tiles_.run({.a = image + h * spec_.stride_height * row,
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

void TiledConv2d::ForwardRow(const float* image, const float* packed, float* y) const {
  const float* const bias = packed + kernel_ * repeated_;
  for (const KernelPart& part : parts_) {
    // The first part begins with the bias, the others with what is in y, and the last applies ReLU to the whole sum.
    const bool is_first = &part == &parts_.front(), is_last = &part == &parts_.back();
    RunRowForward(PartOf(part, image), {.weight = packed,
                                        .init = is_first ? bias : nullptr,
                                        .relu = is_last && spec_.activation == Activation::kRelu,
                                        .y = y});
    packed += part.kernel_height * part.kernel_width * repeated_;
  }
}

void TiledConv2d::Forward(const float* x, const float* weight, const float* bias, float* y) {
  // Packed weights are after the last share.
  float* const packed = ShareAt(context_->threads).image;
  if (lanes_ == Lanes::kChannels) {
    tiles_.transpose(weight, kernel_, spec_.out_channels, kernel_, packed, out_padded_);
  } else {
    RepeatChannels(weight, bias, packed);
  }
  // An output is computed from one image by one thread, so the number of threads does not change its bits.
  ParallelShares(context_->threads, spec_.batch, 1, [&](int index, int64_t begin, int64_t end) {
    const Share share = ShareAt(index);
    ClearImage(share);
    for (int64_t n = begin; n < end; ++n) {
      const float* const image = Padded(x + n * x_image_, share);
      if (lanes_ == Lanes::kChannels) {
        ForwardChannels(image, packed, bias, y + n * y_image_);
      } else {
        ForwardRow(image, packed, y + n * y_image_);
      }
    }
  });
}

// dweight(kernel element, out) += x^T dy over all output positions of one image. Each tile continues the sum that the
// images before left in memory (init == c), so the sum is in the order of the images whatever the tile's size.
void TiledConv2d::WeightGradientChannels(const float* image, const float* dy, const Share& share) const {
  const int64_t row = width_ * spec_.in_channels;
  for (int64_t kh = 0; kh < spec_.kernel_height; ++kh) {
    float* const sums = share.dweight + kh * window_row_ * out_padded_;
    tiles_.run({.a = image + kh * row,
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

// dweight and dbias of one image, added to the share's sums lane by lane. The lanes of one channel are added up once,
// in FinishRow.
void TiledConv2d::WeightGradientRow(const float* image, const float* y, const float* dy, const Share& share) const {
  float* sums = share.dweight;
  for (const KernelPart& part : parts_) {
    const bool is_first = &part == &parts_.front();
    RunRowGradient(PartOf(part, image),
                   {.y = y, .dy = dy, .sums = sums, .bias_sums = is_first ? share.dbias : nullptr});
    sums += phases_ * part.kernel_height * part.kernel_width * 16;
  }
}

// dx of one image, row by row. This is a gather: each input row is computed from the output rows that saw it, so dx is
// written once and not zeroed first.
void TiledConv2d::InputGradientOf(const float* weight, const float* dy, const Share& share, float* dx) const {
  const int64_t dy_row = out_width_ * spec_.out_channels;
  const int64_t dx_row = spec_.in_width * spec_.in_channels;
  for (int64_t h = 0; h < spec_.in_height; ++h) {
    // Input row h is reached by kernel rows kh for which (h + padding - kh) is a multiple of the stride: output row
    // (h + padding - kh) / stride. When kh grows by the stride, the output row falls by one, hence the negative step.
    const int64_t reach = h + spec_.padding_height;
    const int64_t first_row = std::min(reach / spec_.stride_height, out_height_ - 1);
    const int64_t first_kh = reach - first_row * spec_.stride_height;
    const int64_t rows = first_kh >= spec_.kernel_height
                             ? 0
                             : std::min(first_row + 1, (spec_.kernel_height - 1 - first_kh) / spec_.stride_height + 1);
    // With a stride beyond the kernel's height some input rows are seen by no window.
    if (rows <= 0) {
      std::fill_n(dx + h * dx_row, dx_row, 0.0f);
      continue;
    }
    tiles_.run({.a = dy + first_row * dy_row,
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
    // Window row w of this input row begins step * w floats from the left, so neighbours overlap where the stride is
    // below the kernel's width. Backward has zeroed the margins between them.
    tiles_.add_windows({.in = share.windows,
                        .windows = out_width_,
                        .width = window_row_,
                        .step = spec_.stride_width * spec_.in_channels,
                        .skip = spec_.padding_width * spec_.in_channels,
                        .out = dx + h * dx_row,
                        .count = dx_row});
  }
}

// Transposes (kernel, out) to the layout of the weights, (out, kernel). The padding to 16 output channels is left out.
void TiledConv2d::FinishChannels(float* dweight, float* dbias) const {
  const Share sums = ShareAt(0);
  tiles_.transpose(sums.dweight, out_padded_, kernel_, spec_.out_channels, dweight, kernel_);
  if (dbias != nullptr) std::copy_n(sums.dbias, spec_.out_channels, dbias);
}

// Adds the lanes of each channel up. Lane l of a phase is channel (16 * phase + l) % out_channels.
void TiledConv2d::FinishRow(float* dweight, float* dbias) const {
  const float* sums = ShareAt(0).dweight;
  std::fill_n(dweight, kernel_ * spec_.out_channels, 0.0f);
  for (const KernelPart& part : parts_) {
    for (int64_t phase = 0; phase < phases_; ++phase) {
      for (int64_t kh = part.kh; kh < part.kh + part.kernel_height; ++kh) {
        for (int64_t kw = part.kw; kw < part.kw + part.kernel_width; ++kw, sums += 16) {
          float* const to = dweight + (kh * spec_.kernel_width + kw) * spec_.in_channels + part.channel;
          int64_t channel = 16 * phase % spec_.out_channels;
          for (int64_t l = 0; l < 16; ++l) {
            to[channel * kernel_] += sums[l];
            if (++channel == spec_.out_channels) channel = 0;
          }
        }
      }
    }
  }
  if (dbias == nullptr) return;
  std::fill_n(dbias, spec_.out_channels, 0.0f);
  for (int64_t f = 0; f < bias_sums_; ++f) dbias[f % spec_.out_channels] += ShareAt(0).dbias[f];
}

void TiledConv2d::Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                           float* dbias) {
  if (spec_.activation == Activation::kNone) y = nullptr;
  const bool needs_dx = spec_.input_gradient == InputGradient::kNeeded;
  // With a single part and no dx, dy is read once, and the part masks it while it reads. Every other case reads dy
  // several times, so it is masked in memory first.
  const bool masks_in_place = lanes_ == Lanes::kChannels || needs_dx || parts_.size() > 1;
  ParallelShares(context_->threads, spec_.batch, 1, [&](int index, int64_t begin, int64_t end) {
    const Share share = ShareAt(index);
    ClearImage(share);
    // run overwrites the window rows, but never the margins between them, which add_windows reads as zeros.
    std::fill_n(share.windows, out_width_ * (window_row_ + 2 * kWindowMargin), 0.0f);
    std::fill_n(share.dweight, weight_sums_, 0.0f);
    std::fill_n(share.dbias, bias_sums_, 0.0f);
    for (int64_t n = begin; n < end; ++n) {
      const float* const y_image = y == nullptr ? nullptr : y + n * y_image_;
      float* const dy_image = dy + n * y_image_;
      if (masks_in_place) {
        tiles_.mask_and_sum(y_image, dy_image, out_height_ * out_width_, spec_.out_channels,
                            dbias == nullptr || lanes_ == Lanes::kRow ? nullptr : share.dbias);
      }
      const float* const image = Padded(x + n * x_image_, share);
      if (lanes_ == Lanes::kChannels) {
        WeightGradientChannels(image, dy_image, share);
      } else {
        WeightGradientRow(image, masks_in_place ? nullptr : y_image, dy_image, share);
      }
      if (needs_dx) InputGradientOf(weight, dy_image, share, dx + n * x_image_);
    }
  });
  // As many shares as ParallelShares used. The memory of a share that it did not use holds other numbers.
  const int shares = static_cast<int>(std::min<int64_t>(context_->threads, spec_.batch));
  const Share first = ShareAt(0);
  for (int s = 1; s < shares; ++s) {
    const Share next = ShareAt(s);
    for (int64_t i = 0; i < weight_sums_; ++i) first.dweight[i] += next.dweight[i];
    for (int64_t i = 0; i < bias_sums_; ++i) first.dbias[i] += next.dbias[i];
  }
  if (lanes_ == Lanes::kChannels) {
    FinishChannels(dweight, dbias);
  } else {
    FinishRow(dweight, dbias);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateTiledConv2d(CpuContext* context, const Conv2dSpec& spec) {
  auto conv = std::make_unique<TiledConv2d>(context, spec);
  RETURN_IF_ERROR(context->scratch.Reserve(conv->scratch_bytes()), "conv2d");
  return conv;
}

}  // namespace starring
