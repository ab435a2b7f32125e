// The loops of tiles.h, written once. tiles_baseline.cc, tiles_avx2.cc and tiles_avx512.cc each include this file after
// they have defined the vectors of their instruction set:
//   STARRING_TARGET        the attribute that lets a function use the set's instructions. An -m option would also
//                          compile inline functions of other headers for the set; the linker may pick those copies for
//                          the whole program, which then crashes on a CPU without the set
//   Vector, Mask, kLanes   kLanes floats; the lanes of a vector that exist
//   kVectorsMax, RowsMax   the most vectors of a tile; the most rows for a number of vectors, so that sums, one row of
//                          B and a factor fit in the registers
//   LanesBelow, Load, Store, Broadcast, MultiplyAdd, Max
// The includer gets kTilesHere.
//
// Everything here has internal linkage: the three sources define the same names for different instructions.
#ifndef STARRING_KERNELS_CPU_TILES_TILE_LOOPS_H_
#define STARRING_KERNELS_CPU_TILES_TILE_LOOPS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/cpu/tiles/tiles.h"

namespace starring {
namespace {

// kFull: all lanes of the last vector exist. That case has code of its own, because masked loads would cost a tile of
// one vector a tenth of its speed.
enum class Lanes { kFull, kMasked };

template <Lanes kWhich>
STARRING_TARGET inline Vector LoadLast(Mask mask, const float* p) {
  return kWhich == Lanes::kFull ? Load(p) : Load(mask, p);
}
template <Lanes kWhich>
STARRING_TARGET inline void StoreLast(Mask mask, Vector v, float* p) {
  return kWhich == Lanes::kFull ? Store(v, p) : Store(mask, v, p);
}

// x86's maximum returns its second operand if one of the two is NaN. With the operands in this order a NaN stays a NaN
// and reaches the trainer's check; the other way round it would become 0.
STARRING_TARGET inline Vector ReluOf(Vector v) { return Max(Vector{}, v); }

// One tile, with `last` lanes in its last vector. Rows and vectors are constants, so that `sum` is an array of
// registers: with a loop bound that the compiler does not know, every sum would live in memory.
template <int kRows, int kVectors, Lanes kWhich>
STARRING_TARGET void Tile(const TileProblem& problem, int64_t last) {
  // A copy, which no store to C can change. Through the reference the strides would be loaded again after each store.
  const TileProblem p = problem;
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
      // A full tile has so many multiply-adds that one more load per k is free, even of a line that is cached already.
      // A narrower tile waits for its loads.
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

// One function for each shape of a tile, by vectors - 1 and rows - 1. A shape with more rows than RowsMax has none.
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

// A tile of at most kWidth columns. The full last vector is chosen here, once a tile and not once a load.
inline void RunTile(const TileProblem& problem, int64_t rows, int64_t columns) {
  const int64_t vectors = VectorsOf(columns);
  const int64_t last = columns - (vectors - 1) * kLanes;
  const TileTable& table = last == kLanes ? kTable<Lanes::kFull> : kTable<Lanes::kMasked>;
  table.at[vectors - 1][rows - 1](problem, last);
}

// Sets A, init and C of `p`, a copy of `problem`, to row m and column n. B depends on how its columns are stored:
// callers set it.
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
    // As even as possible: 13 rows are 7 and 6, not 12 and 1, because a tile of one row does one multiply-add for a
    // load.
    const int64_t tiles = (rows + rows_max - 1) / rows_max;
    p.b = problem.b + n;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t m = rows * t / tiles, end = rows * (t + 1) / tiles;
      MoveTo(problem, m, n, &p);
      // A line of 16 floats of each row of the next columns: after enough tiles, all of their lines are on the way.
      const int64_t fetched = kWidth + 16 * t;
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

// Within each block of four lanes: the lower (kHalf 0) or upper (1) two lanes of a and of b, alternating in units of
// kUnit lanes. These are the permutations that no instruction set needs more than one instruction for.
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
// out = the transpose of `rows` by `columns` of in, at most kLanes of each. Rows are interleaved in pairs, then pairs
// of rows in pairs: now every block of four lanes is a transposed 4 by 4 square. The last loop sorts the blocks.
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
  // x[j * kBlocks + q] = column j of every block, of rows 4 q to 4 q + 3.
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
  // The side with the longer rows is walked along its rows: its kLanes rows are then as many streams, which the
  // prefetchers follow. Walked across, every block would begin new streams, and its lines would miss the cache.
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
    const int64_t t = j + g.skip;  // the place of the first lane in window 0
    // The windows that any lane is in. Lanes beyond a window's end read zeros of its margin, so no lane needs a test.
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

// dy at offset i, set to 0 where not y > 0; the masked values are also stored, for the products that read dy next.
template <Lanes kWhich>
STARRING_TARGET inline Vector MaskedAt(const float* y, float* dy, int64_t i, Mask lanes) {
  const Vector v = LoadLast<kWhich>(lanes, dy + i);
  if (y == nullptr) return v;
  const Vector masked = LoadLast<kWhich>(lanes, y + i) > Vector{} ? v : Vector{};
  StoreLast<kWhich>(lanes, masked, dy + i);
  return masked;
}

// For fewer columns than lanes: (rows, columns) is read as one flat array of `count` floats, so that no lane is empty.
// The column of a lane is the same every `columns` vectors, so that many vectors of sums are kept, and each lane is
// added to its column at the end.
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

// One vector of columns, kRows rows. The rows are added up in pairs: a chain of kRows additions would wait for each.
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

// Eight rows at a time, from left to right: that is as many streams as the prefetchers follow, and `sums` is read and
// written once for eight rows, not for each.
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

#endif  // STARRING_KERNELS_CPU_TILES_TILE_LOOPS_H_
