// The inner loops of our own matrix products and convolutions: tiles of outputs held in vector registers.
//
// Words. A *tile* is some rows times some vectors; lanes run along n, the fastest axis of B and C. For every k, one row
// of B is loaded and every row of the tile multiplies it with one element of A, which is broadcast. With enough rows
// times vectors the multiply-adds are the bottleneck, whatever the addresses: so the same tile serves dense layers,
// convolutions and their gradients, without im2col, by strides alone. A *panel* is as many columns of B as a full tile
// has, kept together.
//
// One source (tile_loops.h) is compiled for each instruction set, with that set's vectors and tile sizes.
#ifndef STARRING_KERNELS_CPU_TILES_H_
#define STARRING_KERNELS_CPU_TILES_H_

#include <cstdint>

#include "common/arithmetic/instruction_set.h"

namespace starring {

// C(m, n) = act(init(m, n) + sum over i < inner, k < depth of A(i, m, k) * B(i, k, n)). Strides count floats.
//
// Determinism: for each output, products are added in the order of i, k, each by one fused multiply-add (baseline: a
// multiplication and an addition).
//
// kNextColumns: the next columns of B are prefetched meanwhile. For a B whose rows lie so far apart that the hardware
// sees no stream.
enum class Fetch { kNothing, kNextColumns };
struct TileProblem {
  const float* a = nullptr;
  int64_t a_inner = 0, a_row = 0, a_k = 0;
  const float* b = nullptr;
  int64_t b_inner = 0, b_k = 0;
  int64_t b_panel = 0;  // run_panels: from one panel to the next
  int64_t inner = 1, depth = 0;
  const float* init = nullptr;  // null: 0
  int64_t init_row = 0;         // 0: one row for all (a bias per column)
  float* c = nullptr;
  int64_t c_row = 0;
  bool relu = false;
  Fetch fetch = Fetch::kNothing;      // run
  const float* fetch_from = nullptr;  // for the loops' own use
};

// out[j] = sum over w < windows of in(w, j + skip - w * step) where that lies in [0, width), for j < count: windows
// that overlap, added up from left to right. Window w is at in + w * (width + 2 * kWindowMargin) + kWindowMargin; the
// margins around it are zero.
inline constexpr int64_t kWindowMargin = 16;
struct WindowSum {
  const float* in = nullptr;
  int64_t windows = 0, width = 0, step = 0, skip = 0;
  float* out = nullptr;
  int64_t count = 0;
};

// The loops of one instruction set.
struct Tiles {
  // All of C, `rows` by `columns`, tile by tile; the tile's strides say where. B is read once, A again for every
  // tile_columns of C.
  void (*run)(const TileProblem& problem, int64_t rows, int64_t columns);

  // The same of a B in panels. A is read and C is written once, in order; B, which should
  // fit in a cache, is read again for every tile_rows of C.
  void (*run_panels)(const TileProblem& problem, int64_t rows, int64_t columns);

  int64_t tile_rows, tile_columns;  // of a full tile

  // out[c * out_row + r] = in[r * in_row + c] for r < rows, c < columns.
  void (*transpose)(const float* in, int64_t in_row, int64_t rows, int64_t columns, float* out, int64_t out_row);

  void (*add_windows)(const WindowSum& problem);

  // y = act(y + bias), y (rows, columns) with rows y_row apart; a null bias adds nothing.
  void (*add_bias)(const float* bias, bool relu, int64_t rows, int64_t columns, float* y, int64_t y_row);

  // Column sums of dy (rows, columns) after masking it in place: dy = 0 where not y > 0. A null y masks nothing, null
  // sums are not taken. `sums` (columns) is added to.
  void (*mask_and_sum)(const float* y, float* dy, int64_t rows, int64_t columns, float* sums);
};

// REQUIRES: set <= BestInstructionSet().
const Tiles& TilesOf(InstructionSet set);

extern const Tiles kTilesBaseline, kTilesAvx2, kTilesAvx512;

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_TILES_H_
