// The inner loops of our own matrix products and convolutions: tiles of outputs held in vector registers.
//
// Words. A *tile* is a block of C: some rows times some vectors. Lanes run along n, the fastest axis of B and C. For
// every k, one row of B is loaded, and every row of the tile multiplies it with one element of A, which is broadcast. A
// tile with enough rows and vectors is limited by its multiply-adds, wherever its operands are in memory. So one kind
// of tile serves dense layers, convolutions and all of their gradients: they differ in strides alone, and no im2col is
// needed. A *panel* is as many columns of B as a full tile has, stored together.
//
//            n: one to four vectors
//          +-----------------------+
//   k  ... | B(k, n)   loaded once |      for every k, every row m:
//          +-----------------------+         C(m, n) += A(m, k) * B(k, n)
//   A(m, k)| C(m, n)               |      C stays in registers for all k
//   one    |                       |
//   number | rows m                |
//          +-----------------------+
//
// tile_loops.h has the loops. It is compiled once for each instruction set, with that set's vectors and sizes of tiles.
#ifndef STARRING_KERNELS_CPU_TILES_TILES_H_
#define STARRING_KERNELS_CPU_TILES_TILES_H_

#include <cstdint>

#include "common/arithmetic/instruction_set.h"

namespace starring {

// C(m, n) = act(init(m, n) + sum over i < inner, k < depth of A(i, m, k) * B(i, k, n)). Strides count floats.
//
// Determinism: for each output, products are added in the order of i, k, each by one fused multiply-add (baseline: a
// multiplication and an addition).
//
// kNextColumns: the next columns of B are prefetched meanwhile. Worth it for a B whose rows are so far apart in memory
// that the hardware's prefetchers see no stream.
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

// Adds up windows that overlap: out[j] = sum over w < windows, from left to right, of in(w, j + skip - w * step) where
// that index is in [0, width), for j < count. Window w begins at in + w * (width + 2 * kWindowMargin) + kWindowMargin.
// The margins on its sides are zero.
inline constexpr int64_t kWindowMargin = 16;
struct WindowSum {
  const float* in = nullptr;
  int64_t windows = 0, width = 0, step = 0, skip = 0;
  float* out = nullptr;
  int64_t count = 0;
};

// The loops of one instruction set.
struct Tiles {
  // All of C, `rows` by `columns`, tile by tile. B is read once; A is read again for every tile_columns of C.
  void (*run)(const TileProblem& problem, int64_t rows, int64_t columns);

  // The same for a B in panels. A is read and C is written once, in order. B is read again for every tile_rows of C, so
  // it should fit in a cache.
  void (*run_panels)(const TileProblem& problem, int64_t rows, int64_t columns);

  int64_t tile_rows, tile_columns;  // of a full tile

  // out[c * out_row + r] = in[r * in_row + c] for r < rows, c < columns.
  void (*transpose)(const float* in, int64_t in_row, int64_t rows, int64_t columns, float* out, int64_t out_row);

  void (*add_windows)(const WindowSum& problem);

  // y = act(y + bias), y (rows, columns) with y_row floats from row to row. A null bias adds nothing.
  void (*add_bias)(const float* bias, bool relu, int64_t rows, int64_t columns, float* y, int64_t y_row);

  // sums(columns) += the column sums of dy (rows, columns), which is first masked in place: dy = 0 where not y > 0. A
  // null y masks nothing; null sums are not computed.
  void (*mask_and_sum)(const float* y, float* dy, int64_t rows, int64_t columns, float* sums);
};

// REQUIRES: set <= BestInstructionSet().
const Tiles& TilesOf(InstructionSet set);

extern const Tiles kTilesBaseline, kTilesAvx2, kTilesAvx512;

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_TILES_TILES_H_
