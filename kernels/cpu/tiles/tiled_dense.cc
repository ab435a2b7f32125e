// Dense layers on our tiles (kernels/cpu/tiles/tiles.h).
//
// A library's forward product y = x weight^T finds the weights transposed the wrong way: oneDNN packs all of them again
// in every step. Here lanes run along the batch: y^T = weight x^T reads each weight once, in order, and only x and y,
// which are small, are transposed. No pass allocates; oneDNN's inner product allocates its packing buffers in every
// call.
#include <algorithm>
#include <cstring>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/cpu/tiles/tiles.h"

namespace starring {
namespace {

// The rows of weight that dx reads in one pass. Rows of 4 KiB all fall on the same few sets of the second-level cache;
// 256 rows of a panel are the most that it holds before they evict each other.
constexpr int64_t kDepthBlock = 256;

// The smallest share of a product, in multiplications. Below it, starting a thread costs more than it saves.
constexpr int64_t kGrainProducts = 1 << 18;

class TiledDense : public FloatOperation {
 public:
  TiledDense(CpuContext* context, const DenseSpec& spec)
      : context_(context),
        tiles_(TilesOf(context->instruction_set)),
        spec_(spec),
        batch_padded_(RoundUp(spec.batch, 16)),
        batch_panel_(std::min(tiles_.tile_columns, batch_padded_)) {}

  int64_t scratch_bytes() const {
    return static_cast<int64_t>(sizeof(float)) *
           std::max(spec_.in * RoundUp(spec_.batch, batch_panel_) + spec_.out * batch_padded_,
                    spec_.batch * RoundUp(spec_.in, tiles_.tile_columns) + spec_.out * batch_padded_);
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
  const Tiles& tiles_;
  const DenseSpec spec_;
  const int64_t batch_padded_;
  const int64_t batch_panel_;  // columns of a panel of x^T
};

void TiledDense::Forward(const float* x, const float* weight, const float* bias, float* y) {
  float* const x_transposed = reinterpret_cast<float*>(context_->scratch.data());            // (panel, in, batch_panel)
  float* const y_transposed = x_transposed + spec_.in * RoundUp(spec_.batch, batch_panel_);  // (out, batch_padded)
  ParallelRanges(context_->threads, spec_.in, Grain(spec_.batch, 16), [&](int64_t begin, int64_t end) {
    for (int64_t n = 0; n < spec_.batch; n += batch_panel_) {
      tiles_.transpose(x + n * spec_.in + begin, spec_.in, std::min(batch_panel_, spec_.batch - n), end - begin,
                       x_transposed + n * spec_.in + begin * batch_panel_, batch_panel_);
    }
  });
  ParallelRanges(context_->threads, spec_.out, Grain(spec_.batch * spec_.in, 16), [&](int64_t begin, int64_t end) {
    tiles_.run_panels({.a = weight + begin * spec_.in,
                       .a_row = spec_.in,
                       .a_k = 1,
                       .b = x_transposed,
                       .b_k = batch_panel_,
                       .b_panel = spec_.in * batch_panel_,
                       .depth = spec_.in,
                       .c = y_transposed + begin * batch_padded_,
                       .c_row = batch_padded_},
                      end - begin, spec_.batch);
    // Each share transposes its own rows. Bias and ReLU follow as a pass of their own: in y^T a bias is one number for
    // each row, and a tile can begin with a row of numbers only.
    tiles_.transpose(y_transposed + begin * batch_padded_, batch_padded_, end - begin, spec_.batch, y + begin,
                     spec_.out);
    tiles_.add_bias(bias == nullptr ? nullptr : bias + begin, spec_.activation == Activation::kRelu, spec_.batch,
                    end - begin, y + begin, spec_.out);
  });
}

// dx = dy weight, in passes of kDepthBlock rows of weight; from the second pass on, dx itself is the initial value.
void TiledDense::PropagateGradient(const float* weight, const float* dy, float* dx) const {
  ParallelRanges(context_->threads, spec_.in, Grain(spec_.batch * spec_.out, tiles_.tile_columns),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t k = 0; k < spec_.out; k += kDepthBlock) {
                     tiles_.run({.a = dy + k,
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

// Copies x into contiguous panels, each of which is one stream for the prefetchers. The rows of x itself may be a
// multiple of 4 KiB apart: they would then evict each other from the first-level cache.
void TiledDense::PackInput(const float* x, float* packed) const {
  const int64_t panel = tiles_.tile_columns;
  ParallelRanges(context_->threads, spec_.batch, Grain(spec_.in * spec_.out, 1), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t n = 0; n < spec_.in; n += panel) {
        std::memcpy(packed + n * spec_.batch + k * panel, x + k * spec_.in + n,
                    static_cast<size_t>(std::min(panel, spec_.in - n)) * sizeof(float));
      }
    }
  });
}

// dweight = dy^T x. dweight may be larger than the core's caches, so it is written once, in order; x is read again and
// again, and stays in the second-level cache.
void TiledDense::WeightGradient(const float* packed, const float* dy_transposed, float* dweight) const {
  const int64_t grain = Grain(spec_.batch * spec_.in, tiles_.tile_rows);
  ParallelRanges(context_->threads, spec_.out, grain, [&](int64_t begin, int64_t end) {
    tiles_.run_panels({.a = dy_transposed + begin * batch_padded_,
                       .a_row = batch_padded_,
                       .a_k = 1,
                       .b = packed,
                       .b_k = tiles_.tile_columns,
                       .b_panel = tiles_.tile_columns * spec_.batch,
                       .depth = spec_.batch,
                       .c = dweight + begin * spec_.in,
                       .c_row = spec_.in},
                      end - begin, spec_.in);
  });
}

void TiledDense::Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                          float* dbias) {
  if (dbias != nullptr) std::fill_n(dbias, spec_.out, 0.0f);
  tiles_.mask_and_sum(spec_.activation == Activation::kRelu ? y : nullptr, dy, spec_.batch, spec_.out, dbias);
  if (spec_.input_gradient == InputGradient::kNeeded) PropagateGradient(weight, dy, dx);

  float* const packed = reinterpret_cast<float*>(context_->scratch.data());
  float* const dy_transposed = packed + spec_.batch * RoundUp(spec_.in, tiles_.tile_columns);
  PackInput(x, packed);
  // The product reads dy^T, so that a row of A, which has one number for each sample, is contiguous.
  tiles_.transpose(dy, spec_.out, spec_.batch, spec_.out, dy_transposed, batch_padded_);
  WeightGradient(packed, dy_transposed, dweight);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context, const DenseSpec& spec) {
  auto dense = std::make_unique<TiledDense>(context, spec);
  RETURN_IF_ERROR(context->scratch.Reserve(dense->scratch_bytes()), "dense");
  return dense;
}

}  // namespace starring
