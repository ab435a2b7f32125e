// The loops of tiles.h, over the vectors of the source that includes this: once for each instruction set. Its includer
// defines before
//   STARRING_TARGET        the attribute that lets a function use the set's instructions; an -m option instead would
//                          compile inline functions of other headers for the set too, and they could end up in the
//                          whole program
//   Vector, Mask, kLanes   what holds kLanes floats, and which of them exist
//   kVectorsMax, RowsMax   of a tile: at most so many vectors; so many rows for that many vectors, by the registers
//   LanesBelow, Load, Store, Broadcast, MultiplyAdd, Max
// and gets kTilesHere.
#ifndef STARRING_KERNELS_CPU_TILE_LOOPS_H_
#define STARRING_KERNELS_CPU_TILE_LOOPS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/cpu/tiles.h"

namespace starring {
namespace {

// kFull: all lanes of the last vector exist. A masked load of it would cost a tenth of a narrow tile's speed.
enum class Lanes { kFull, kMasked };

template <Lanes kWhich>
STARRING_TARGET inline Vector LoadLast(Mask mask, const float* p) {
  return kWhich == Lanes::kFull ? Load(p) : Load(mask, p);
}
template <Lanes kWhich>
STARRING_TARGET inline void StoreLast(Mask mask, Vector v, float* p) {
  return kWhich == Lanes::kFull ? Store(v, p) : Store(mask, v, p);
}

// The second operand comes through when one is NaN: a NaN survives.
STARRING_TARGET inline Vector ReluOf(Vector v) { return Max(Vector{}, v); }

// `last` lanes of the last vector exist.
template <int kRows, int kVectors, Lanes kWhich>
STARRING_TARGET void Tile(const TileProblem& problem, int64_t last) {
  const TileProblem p = problem;  // so that no store to C may change it
  constexpr int kLast = kVectors - 1;
  const Mask mask = LanesBelow(last);
  Vector sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = Vector{};
      if (p.init == nullptr) continue;
      const float* const init = p.init + r * p.init_row + kLanes * v;
      sum[r][v] = v == kLast ? LoadLast<kWhich>(mask, init) : Load(init);
    }
  }
  for (int64_t i = 0; i < p.inner; ++i) {
    const float* a = p.a + i * p.a_inner;
    const float* b = p.b + i * p.b_inner;
    const float* fetch = p.fetch_from == nullptr ? b : p.fetch_from + i * p.b_inner;
    for (int64_t k = 0; k < p.depth; ++k) {
      Vector row[kVectors];
      // Beside the multiply-adds of a full tile one more load is free, even of a line that is there already.
      if (kVectors == kVectorsMax) __builtin_prefetch(fetch, 0, 2);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        row[v] = v == kLast ? LoadLast<kWhich>(mask, b + kLanes * v) : Load(b + kLanes * v);
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Vector factor = Broadcast(a[r * p.a_row]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] = MultiplyAdd(factor, row[v], sum[r][v]);
      }
      a += p.a_k;
      b += p.b_k;
      fetch += p.b_k;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (p.relu) sum[r][v] = ReluOf(sum[r][v]);
      float* const c = p.c + r * p.c_row + kLanes * v;
      if (v == kLast) {
        StoreLast<kWhich>(mask, sum[r][v], c);
      } else {
        Store(sum[r][v], c);
      }
    }
  }
}

using TileFunction = void (*)(const TileProblem&, int64_t last);

// By vectors - 1 and rows - 1.
struct TileTable {
  TileFunction at[kVectorsMax][RowsMax(1)];
};
template <Lanes kWhich, int kVectors, int... kRows>
constexpr void FillRows(TileTable* table, std::integer_sequence<int, kRows...>) {
  ((table->at[kVectors - 1][kRows] = Tile<kRows + 1, kVectors, kWhich>), ...);
}
template <Lanes kWhich, int... kVectors>
constexpr TileTable TableOf(std::integer_sequence<int, kVectors...>) {
  TileTable table = {};
  (FillRows<kWhich, kVectors + 1>(&table, std::make_integer_sequence<int, RowsMax(kVectors + 1)>()), ...);
  return table;
}
template <Lanes kWhich>
constexpr TileTable kTable = TableOf<kWhich>(std::make_integer_sequence<int, kVectorsMax>());

constexpr int64_t kWidth = kVectorsMax * kLanes;

constexpr int64_t VectorsOf(int64_t columns) { return (std::min(columns, kWidth) + kLanes - 1) / kLanes; }

// Of at most kWidth columns.
inline void RunTile(const TileProblem& problem, int64_t rows, int64_t columns) {
  const int64_t vectors = VectorsOf(columns);
  const int64_t last = columns - (vectors - 1) * kLanes;
  const TileTable& table = last == kLanes ? kTable<Lanes::kFull> : kTable<Lanes::kMasked>;
  table.at[vectors - 1][rows - 1](problem, last);
}

// Moves A, init and C of `p`, a copy of `problem`, to row m and column n.
inline void MoveTo(const TileProblem& problem, int64_t m, int64_t n, TileProblem* p) {
  p->a = problem.a + m * problem.a_row;
  if (problem.init != nullptr) p->init = problem.init + m * problem.init_row + n;
  p->c = problem.c + m * problem.c_row + n;
}

void RunTiles(const TileProblem& problem, int64_t rows, int64_t columns) {
  TileProblem p = problem;
  for (int64_t n = 0; n < columns; n += kWidth) {
    const int64_t width = std::min(kWidth, columns - n);
    const int64_t rows_max = RowsMax(static_cast<int>(VectorsOf(width)));
    const int64_t tiles = (rows + rows_max - 1) / rows_max;
    p.b = problem.b + n;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t m = rows * t / tiles, end = rows * (t + 1) / tiles;
      MoveTo(problem, m, n, &p);
      const int64_t fetched = kWidth + 16 * t;  // every row of tiles fetches a line of each row of the next columns
      const bool fetches = problem.fetch == Fetch::kNextColumns && 16 * t < kWidth && n + fetched < columns;
      p.fetch_from = fetches ? p.b + fetched : nullptr;
      RunTile(p, end - m, width);
    }
  }
}

void RunPanels(const TileProblem& problem, int64_t rows, int64_t columns) {
  const int64_t rows_max = RowsMax(static_cast<int>(VectorsOf(columns)));
  const int64_t tiles = (rows + rows_max - 1) / rows_max;
  TileProblem p = problem;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t m = rows * t / tiles, end = rows * (t + 1) / tiles;
    p.b = problem.b;
    for (int64_t n = 0; n < columns; n += kWidth, p.b += p.b_panel) {
      MoveTo(problem, m, n, &p);
      RunTile(p, end - m, std::min(kWidth, columns - n));
    }
  }
}

// The four lanes of each quarter, taken apart: the lower (kHalf 0) or upper (1) `kUnit`-lane halves of a and b,
// alternating.
template <int kHalf, int kUnit, int... kLane>
STARRING_TARGET inline Vector Interleave(Vector a, Vector b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b,
                                 (kLane / 4 * 4 + (2 * kHalf + kLane % 4 / (2 * kUnit) * kUnit + kLane % kUnit) % 4 +
                                  kLane % (2 * kUnit) / kUnit * kLanes)...);
}
// The blocks of four lanes of a, then of b, that have an even (kOdd 0) or odd (1) number.
template <int kOdd, int... kLane>
STARRING_TARGET inline Vector EveryOther(Vector a, Vector b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, (kLane / 4 * 8 + 4 * kOdd + kLane % 4)...);
}
// Inside each block of four lanes pairs of rows are interleaved, then pairs of those; then the blocks are sorted.
STARRING_TARGET void TransposeBlock(const float* in, int64_t in_row, float* out, int64_t out_row, int64_t rows,
                                    int64_t columns) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  constexpr int kBlocks = kLanes / 4, kHalf = (kBlocks + 1) / 2;
  const Mask in_mask = LanesBelow(columns), out_mask = LanesBelow(rows);
  Vector x[kLanes], y[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) x[i] = i < rows ? Load(in_mask, in + i * in_row) : Vector{};
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 2) {
    y[i] = Interleave<0, 1>(x[i], x[i + 1], kAll);
    y[i + 1] = Interleave<1, 1>(x[i], x[i + 1], kAll);
  }
  // x[j * kBlocks + q]: columns j of all blocks, of rows 4 q to 4 q + 3.
#pragma GCC unroll 4
  for (int q = 0; q < kBlocks; ++q) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      x[2 * j * kBlocks + q] = Interleave<0, 2>(y[4 * q + j], y[4 * q + j + 2], kAll);
      x[(2 * j + 1) * kBlocks + q] = Interleave<1, 2>(y[4 * q + j], y[4 * q + j + 2], kAll);
    }
  }
#pragma GCC unroll 2
  for (int step = 1; step < kBlocks; step *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      const int first = i / kHalf * kBlocks, pair = i % kHalf;
      y[first + pair] = EveryOther<0>(x[first + 2 * pair], x[first + 2 * pair + 1], kAll);
      y[first + pair + kHalf] = EveryOther<1>(x[first + 2 * pair], x[first + 2 * pair + 1], kAll);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i < columns) Store(out_mask, x[i % 4 * kBlocks + i / 4], out + i * out_row);
  }
}

void TransposeAll(const float* in, int64_t in_row, int64_t rows, int64_t columns, float* out, int64_t out_row) {
  const auto block = [&](int64_t r, int64_t c) {
    TransposeBlock(in + r * in_row + c, in_row, out + c * out_row + r, out_row, std::min<int64_t>(kLanes, rows - r),
                   std::min<int64_t>(kLanes, columns - c));
  };
  // Along the rows of the side whose rows are longer: as many streams for the prefetchers as there are lanes.
  if (in_row >= out_row) {
    for (int64_t r = 0; r < rows; r += kLanes) {
      for (int64_t c = 0; c < columns; c += kLanes) block(r, c);
    }
  } else {
    for (int64_t c = 0; c < columns; c += kLanes) {
      for (int64_t r = 0; r < rows; r += kLanes) block(r, c);
    }
  }
}

STARRING_TARGET void AddWindows(const WindowSum& g) {
  const int64_t pitch = g.width + 2 * kWindowMargin;
  for (int64_t j = 0; j < g.count; j += kLanes) {
    const int64_t t = j + g.skip;  // where the first lane lies in window 0
    const int64_t first = t < g.width ? 0 : (t - g.width) / g.step + 1;
    const int64_t last = std::min((t + kLanes - 1) / g.step, g.windows - 1);
    Vector sum = {};
    for (int64_t w = first; w <= last; ++w) sum += Load(g.in + w * pitch + kWindowMargin + t - w * g.step);
    Store(LanesBelow(g.count - j), sum, g.out + j);
  }
}

STARRING_TARGET void AddBias(const float* bias, bool relu, int64_t rows, int64_t columns, float* y, int64_t y_row) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      const Mask mask = LanesBelow(columns - c);
      float* const p = y + r * y_row + c;
      Vector v = Load(mask, p);
      if (bias != nullptr) v += Load(mask, bias + c);
      if (relu) v = ReluOf(v);
      Store(mask, v, p);
    }
  }
}

// dy at offset i, masked by y > 0 in memory too.
template <Lanes kWhich>
STARRING_TARGET inline Vector MaskedAt(const float* y, float* dy, int64_t i, Mask lanes) {
  const Vector v = LoadLast<kWhich>(lanes, dy + i);
  if (y == nullptr) return v;
  const Vector masked = LoadLast<kWhich>(lanes, y + i) > Vector{} ? v : Vector{};
  StoreLast<kWhich>(lanes, masked, dy + i);
  return masked;
}

// Fewer columns than lanes: over the flat array, the columns of the lanes repeat after `columns` vectors at the latest.
STARRING_TARGET void MaskAndSumNarrow(const float* y, float* dy, int64_t count, int64_t columns, float* sums) {
  Vector sum[kLanes];
  for (int64_t v = 0; v < columns; ++v) sum[v] = Vector{};
  for (int64_t i = 0, v = 0; i < count; i += kLanes) {
    sum[v] += MaskedAt<Lanes::kMasked>(y, dy, i, LanesBelow(count - i));
    if (++v == columns) v = 0;
  }
  if (sums == nullptr) return;
  float lanes[kLanes];
  for (int64_t v = 0; v < columns; ++v) {
    Store(sum[v], lanes);
    for (int64_t l = 0; l < kLanes; ++l) sums[(v * kLanes + l) % columns] += lanes[l];
  }
}

template <int kRows, Lanes kWhich>
STARRING_TARGET inline void MaskAndSumVector(const float* y, float* dy, int64_t columns, Mask lanes, float* sums) {
  Vector v[kRows];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r) {
    v[r] = MaskedAt<kWhich>(y == nullptr ? nullptr : y + r * columns, dy + r * columns, 0, lanes);
  }
  if (sums == nullptr) return;
#pragma GCC unroll 3
  for (int step = kRows / 2; step > 0; step /= 2) {
#pragma GCC unroll 4
    for (int r = 0; r < step; ++r) v[r] += v[r + step];
  }
  StoreLast<kWhich>(lanes, LoadLast<kWhich>(lanes, sums) + v[0], sums);
}

// Eight rows at a time, from left to right: as many streams as the prefetchers follow, and one pass over `sums`.
template <int kRows>
STARRING_TARGET void MaskAndSumRows(const float* y, float* dy, int64_t columns, float* sums) {
  const auto at = [](auto* p, int64_t c) { return p == nullptr ? nullptr : p + c; };
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    MaskAndSumVector<kRows, Lanes::kFull>(at(y, c), dy + c, columns, LanesBelow(kLanes), at(sums, c));
  }
  if (c == columns) return;
  MaskAndSumVector<kRows, Lanes::kMasked>(at(y, c), dy + c, columns, LanesBelow(columns - c), at(sums, c));
}

STARRING_TARGET void MaskAndSum(const float* y, float* dy, int64_t rows, int64_t columns, float* sums) {
  if (y == nullptr && sums == nullptr) return;
  if (columns < kLanes) return MaskAndSumNarrow(y, dy, rows * columns, columns, sums);
  const auto y_row = [&](int64_t r) { return y == nullptr ? nullptr : y + r * columns; };
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8) MaskAndSumRows<8>(y_row(r), dy + r * columns, columns, sums);
  for (; r < rows; ++r) MaskAndSumRows<1>(y_row(r), dy + r * columns, columns, sums);
}

constexpr Tiles kTilesHere = {.run = RunTiles,
                              .run_panels = RunPanels,
                              .tile_rows = RowsMax(kVectorsMax),
                              .tile_columns = kWidth,
                              .transpose = TransposeAll,
                              .add_windows = AddWindows,
                              .add_bias = AddBias,
                              .mask_and_sum = MaskAndSum};

}  // namespace
}  // namespace starring

#endif  // STARRING_KERNELS_CPU_TILE_LOOPS_H_
