#include "kernels/cpu/tiled_dense.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_avx512.h"

namespace starring {
namespace {

constexpr int64_t kPanel = 16 * kTileVectorsMax;  // columns that one row of tiles covers

// Rows of dweight that are computed together: one tile high.
constexpr int64_t kRowGroup = TileRowsMax(kTileVectorsMax);

// Rows of weight that dx reads per pass: with rows of 4 KiB, 256 rows of a panel are as many as the second-level cache
// holds without conflicts.
constexpr int64_t kDepthBlock = 256;

// A thread's share of a product: below, starting threads costs more than the work.
constexpr int64_t kGrainProducts = 1 << 18;

class TiledDense : public Dense {
 public:
  TiledDense(CpuContext* context, const DenseSpec& spec)
      : context_(context), spec_(spec), batch_padded_(RoundUp(spec.batch, 16)) {
    context->scratch.Reserve(static_cast<int64_t>(sizeof(float)) *
                             std::max((spec.in + spec.out) * batch_padded_,
                                      spec.batch * RoundUp(spec.in, kPanel) + spec.out * batch_padded_));
  }

  void Forward(const float* x, const float* weight, const float* bias, float* y) override;
  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override;

 private:
  void PropagateGradient(const float* weight, const float* dy, float* dx) const;
  void PackInput(const float* x, float* packed) const;
  void WeightGradient(const float* packed, const float* dy_transposed, float* dweight) const;

  // How many of `count` rows or columns, each of `products` multiplications, make a share; a multiple of `unit`.
  static int64_t Grain(int64_t products, int64_t unit) {
    return RoundUp(std::max<int64_t>(1, kGrainProducts / products), unit);
  }

  CpuContext* const context_;
  const DenseSpec spec_;
  const int64_t batch_padded_;
};

void TiledDense::Forward(const float* x, const float* weight, const float* bias, float* y) {
  float* const x_transposed = reinterpret_cast<float*>(context_->scratch.data());  // (in, batch_padded)
  float* const y_transposed = x_transposed + spec_.in * batch_padded_;             // (out, batch_padded)
  ParallelRanges(context_->threads, spec_.in, Grain(spec_.batch, 16), [&](int64_t begin, int64_t end) {
    Transpose(x + begin, spec_.in, spec_.batch, end - begin, x_transposed + begin * batch_padded_, batch_padded_);
  });
  ParallelRanges(context_->threads, spec_.out, Grain(spec_.batch * spec_.in, 16), [&](int64_t begin, int64_t end) {
    RunTiles({.a = weight + begin * spec_.in,
              .a_row = spec_.in,
              .a_k = 1,
              .b = x_transposed,
              .b_k = batch_padded_,
              .depth = spec_.in,
              .c = y_transposed + begin * batch_padded_,
              .c_row = batch_padded_},
             end - begin, spec_.batch);
    Transpose(y_transposed + begin * batch_padded_, batch_padded_, end - begin, spec_.batch, y + begin, spec_.out);
    AddBias(bias == nullptr ? nullptr : bias + begin, spec_.activation == Activation::kRelu, spec_.batch, end - begin,
            y + begin, spec_.out);
  });
}

// dx = dy weight.
void TiledDense::PropagateGradient(const float* weight, const float* dy, float* dx) const {
  ParallelRanges(context_->threads, spec_.in, Grain(spec_.batch * spec_.out, kPanel), [&](int64_t begin, int64_t end) {
    for (int64_t k = 0; k < spec_.out; k += kDepthBlock) {
      RunTiles({.a = dy + k,
                .a_row = spec_.out,
                .a_k = 1,
                .b = weight + k * spec_.in + begin,
                .b_k = spec_.in,
                .depth = std::min(kDepthBlock, spec_.out - k),
                .init = k == 0 ? nullptr : dx + begin,
                .init_row = spec_.in,
                .c = dx + begin,
                .c_row = spec_.in,
                .fetch = Fetch::kNextColumns},
               spec_.batch, end - begin);
    }
  });
}

// Panels of kPanel columns, each contiguous: one stream for the prefetchers, where the rows of x may lie a multiple of
// 4 KiB apart and push each other out of the first-level cache.
void TiledDense::PackInput(const float* x, float* packed) const {
  ParallelRanges(context_->threads, spec_.batch, Grain(spec_.in * spec_.out, 1), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t n = 0; n < spec_.in; n += kPanel) {
        std::memcpy(packed + n * spec_.batch + k * kPanel, x + k * spec_.in + n,
                    static_cast<size_t>(std::min(kPanel, spec_.in - n)) * sizeof(float));
      }
    }
  });
}

// dweight = dy^T x. A tile's rows from end to end, then the next: dweight, which may be larger than the core's caches,
// is written in order, and what is read again and again, x, stays in the second-level cache.
void TiledDense::WeightGradient(const float* packed, const float* dy_transposed, float* dweight) const {
  const int64_t grain = Grain(spec_.batch * spec_.in, kRowGroup);
  ParallelRanges(context_->threads, spec_.out, grain, [&](int64_t begin, int64_t end) {
    TileProblem p = {.a_row = batch_padded_, .a_k = 1, .b_k = kPanel, .depth = spec_.batch, .c_row = spec_.in};
    for (int64_t m = begin; m < end; m += kRowGroup) {
      p.a = dy_transposed + m * batch_padded_;
      for (int64_t n = 0; n < spec_.in; n += kPanel) {
        p.b = packed + n * spec_.batch;
        p.c = dweight + m * spec_.in + n;
        RunTileOfWidth(&p, static_cast<int>(std::min(kRowGroup, end - m)), std::min(kPanel, spec_.in - n));
      }
    }
  });
}

void TiledDense::Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                          float* dbias) {
  if (dbias != nullptr) std::fill_n(dbias, spec_.out, 0.0f);
  MaskAndSum(spec_.activation == Activation::kRelu ? y : nullptr, dy, spec_.batch, spec_.out, dbias);
  if (spec_.input_gradient == InputGradient::kNeeded) PropagateGradient(weight, dy, dx);

  float* const packed = reinterpret_cast<float*>(context_->scratch.data());
  float* const dy_transposed = packed + spec_.batch * RoundUp(spec_.in, kPanel);
  PackInput(x, packed);
  Transpose(dy, spec_.out, spec_.batch, spec_.out, dy_transposed, batch_padded_);
  WeightGradient(packed, dy_transposed, dweight);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dense>> CreateTiledDense(CpuContext* context, const DenseSpec& spec) {
  return std::make_unique<TiledDense>(context, spec);
}

}  // namespace starring
