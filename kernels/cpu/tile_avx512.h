// The inner loop of our own matrix products and convolutions: a tile of outputs held in AVX-512 registers.
//
// Words. A *tile* is `rows` times `vectors` vectors of 16 lanes. Lanes run along n, the fastest axis of B and C. For
// every k, one row of B is loaded (`vectors` loads) and every row of the tile multiplies it with one element of A,
// which is broadcast. With rows * vectors >= 8 the fused multiply-adds, one per cycle, are the bottleneck, whatever the
// addresses: so the same tile serves dense layers, convolutions and their gradients, without im2col, by strides alone.
//
// Only on a CPU with AVX-512: REQUIRES BestInstructionSet() == kAvx512.
#ifndef STARRING_KERNELS_CPU_TILE_AVX512_H_
#define STARRING_KERNELS_CPU_TILE_AVX512_H_

#include <cstdint>

namespace starring {

// C(m, n) = act(init(m, n) + sum over i < inner, k < depth of A(i, m, k) * B(i, k, n)), for n below 16 * vectors - 16 +
// the number of bits in last_mask. Strides count floats.
//
// Determinism: for each output, products are added in the order of i, k, each by one fused multiply-add.
//
// kNextColumns: the next columns of B are prefetched meanwhile. For a B whose rows lie so far apart that the hardware
// sees no stream.
enum class Fetch { kNothing, kNextColumns };
struct TileProblem {
  const float* a = nullptr;
  int64_t a_inner = 0, a_row = 0, a_k = 0;
  const float* b = nullptr;
  int64_t b_inner = 0, b_k = 0;
  int64_t inner = 1, depth = 0;
  const float* init = nullptr;  // null: 0
  int64_t init_row = 0;         // 0: one row for all (a bias per column)
  float* c = nullptr;
  int64_t c_row = 0;
  uint16_t last_mask = 0xffff;  // lanes of the last vector that exist in B, init and C
  bool relu = false;
  Fetch fetch = Fetch::kNothing;      // RunTiles
  const float* fetch_from = nullptr;  // RunTile of 4 vectors: one line per k, b_k apart, from here on; null: none
};

inline constexpr int kTileVectorsMax = 4;

// The most rows a tile of `vectors` vectors may have: what fits in 32 registers.
constexpr int TileRowsMax(int vectors) { return vectors == 1 ? 12 : vectors == 2 ? 12 : vectors == 3 ? 8 : 6; }

// REQUIRES: 1 <= vectors <= kTileVectorsMax, 1 <= rows <= TileRowsMax(vectors).
void RunTile(const TileProblem& problem, int rows, int vectors);

// Of `columns` columns, at most 16 * kTileVectorsMax: sets last_mask and runs.
inline void RunTileOfWidth(TileProblem* problem, int rows, int64_t columns) {
  const int vectors = static_cast<int>((columns + 15) / 16);
  problem->last_mask = static_cast<uint16_t>(0xffff >> (16 * vectors - columns));
  RunTile(*problem, rows, vectors);
}

// All of C, `rows` by `columns`, tile by tile; the tile's strides say where.
void RunTiles(const TileProblem& problem, int64_t rows, int64_t columns);

// out[c * out_row + r] = in[r * in_row + c] for r < rows, c < columns.
void Transpose(const float* in, int64_t in_row, int64_t rows, int64_t columns, float* out, int64_t out_row);

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
void AddWindows(const WindowSum& problem);

// y = act(y + bias), y (rows, columns) with rows y_row apart; a null bias adds nothing.
void AddBias(const float* bias, bool relu, int64_t rows, int64_t columns, float* y, int64_t y_row);

// Column sums of dy (rows, columns) after masking it in place: dy = 0 where not y > 0. A null y masks nothing, null
// sums are not taken. `sums` (columns) is added to.
void MaskAndSum(const float* y, float* dy, int64_t rows, int64_t columns, float* sums);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_TILE_AVX512_H_
