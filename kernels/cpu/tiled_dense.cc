#include "kernels/cpu/tiled_dense.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_avx512.h"

namespace starring {
namespace {

constexpr int64_t kPanel = 16 * kTileVectorsMax;  // columns that one row of tiles covers

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
                             std::max((spec.in + spec.out) * batch_padded_, spec.batch * RoundUp(spec.in, kPanel)));
  }

  void Forward(const float* x, const float* weight, const float* bias, float* y) override;
  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override;

 private:
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

void TiledDense::Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                          float* dbias) {
  if (dbias != nullptr) std::fill_n(dbias, spec_.out, 0.0f);
  MaskAndSum(spec_.activation == Activation::kRelu ? y : nullptr, dy, spec_.batch, spec_.out, dbias);

  // dweight = dy^T x, panel by panel of x, which is packed: its rows may lie a multiple of 4 KiB apart, where they
  // would push each other out of the first-level cache.
  float* const packed = reinterpret_cast<float*>(context_->scratch.data());
  ParallelRanges(context_->threads, spec_.in, Grain(spec_.batch * spec_.out, kPanel), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; n += kPanel) {
      const int64_t width = std::min(kPanel, end - n);
      float* const panel = packed + n * spec_.batch;
      for (int64_t k = 0; k < spec_.batch; ++k) {
        std::memcpy(panel + k * kPanel, x + k * spec_.in + n, static_cast<size_t>(width) * sizeof(float));
      }
      RunTiles({.a = dy,
                .a_row = 1,
                .a_k = spec_.out,
                .b = panel,
                .b_k = kPanel,
                .depth = spec_.batch,
                .c = dweight + n,
                .c_row = spec_.in},
               spec_.out, width);
    }
  });
  if (spec_.input_gradient == InputGradient::kNotNeeded) return;

  // dx = dy weight.
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
                .c_row = spec_.in},
               spec_.batch, end - begin);
    }
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dense>> CreateTiledDense(CpuContext* context, const DenseSpec& spec) {
  return std::make_unique<TiledDense>(context, spec);
}

}  // namespace starring
