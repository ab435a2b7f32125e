#include "kernels/cpu/tile_avx512.h"

#include <immintrin.h>

#include <utility>

namespace starring {
namespace {

#define STARRING_AVX512 __attribute__((target("avx512f")))

inline __mmask16 LanesBelow(int64_t count) {
  return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1);
}

// kFull: all lanes of the last vector exist. A masked load of it would cost a tenth of a narrow tile's speed.
enum class Lanes { kFull, kMasked };

template <Lanes kLanes>
STARRING_AVX512 inline __m512 LoadLast(__mmask16 mask, const float* p) {
  return kLanes == Lanes::kFull ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(mask, p);
}

template <int kRows, int kVectors, Lanes kLanes>
STARRING_AVX512 void Tile(const TileProblem& problem) {
  const TileProblem p = problem;  // so that no store to C may change it
  constexpr int kLast = kVectors - 1;
  const __mmask16 mask = p.last_mask;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = _mm512_setzero_ps();
      if (p.init == nullptr) continue;
      const float* const init = p.init + r * p.init_row + 16 * v;
      sum[r][v] = v == kLast ? LoadLast<kLanes>(mask, init) : _mm512_loadu_ps(init);
    }
  }
  for (int64_t i = 0; i < p.inner; ++i) {
    const float* a = p.a + i * p.a_inner;
    const float* b = p.b + i * p.b_inner;
    const float* fetch = p.fetch_from == nullptr ? b : p.fetch_from + i * p.b_inner;
    for (int64_t k = 0; k < p.depth; ++k) {
      __m512 row[kVectors];
      // Beside 24 multiply-adds one more load is free, even of a line that is there already.
      if (kVectors == kTileVectorsMax) _mm_prefetch(fetch, _MM_HINT_T1);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        row[v] = v == kLast ? LoadLast<kLanes>(mask, b + 16 * v) : _mm512_loadu_ps(b + 16 * v);
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const __m512 factor = _mm512_set1_ps(a[r * p.a_row]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(factor, row[v], sum[r][v]);
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
      // The second operand comes through when one is NaN: a NaN survives.
      if (p.relu) sum[r][v] = _mm512_max_ps(_mm512_setzero_ps(), sum[r][v]);
      float* const c = p.c + r * p.c_row + 16 * v;
      if (v == kLast && kLanes == Lanes::kMasked) {
        _mm512_mask_storeu_ps(c, mask, sum[r][v]);
      } else {
        _mm512_storeu_ps(c, sum[r][v]);
      }
    }
  }
}

using TileFunction = void (*)(const TileProblem&);
template <int kVectors, Lanes kLanes, int... kRows>
constexpr auto TilesOf(std::integer_sequence<int, kRows...>) {
  struct Table {
    TileFunction rows[sizeof...(kRows)];
  };
  return Table{{Tile<kRows + 1, kVectors, kLanes>...}};
}
template <int kVectors, Lanes kLanes>
constexpr auto kTiles = TilesOf<kVectors, kLanes>(std::make_integer_sequence<int, TileRowsMax(kVectors)>());

template <Lanes kLanes>
void RunTileOf(const TileProblem& problem, int rows, int vectors) {
  switch (vectors) {
    case 1:
      return kTiles<1, kLanes>.rows[rows - 1](problem);
    case 2:
      return kTiles<2, kLanes>.rows[rows - 1](problem);
    case 3:
      return kTiles<3, kLanes>.rows[rows - 1](problem);
    default:
      return kTiles<4, kLanes>.rows[rows - 1](problem);
  }
}

}  // namespace

void RunTile(const TileProblem& problem, int rows, int vectors) {
  if (problem.last_mask == 0xffff) return RunTileOf<Lanes::kFull>(problem, rows, vectors);
  RunTileOf<Lanes::kMasked>(problem, rows, vectors);
}

void RunTiles(const TileProblem& problem, int64_t rows, int64_t columns) {
  constexpr int64_t kWidth = 16 * kTileVectorsMax;
  TileProblem p = problem;
  for (int64_t n = 0; n < columns; n += kWidth) {
    const int64_t width = columns - n < kWidth ? columns - n : kWidth;
    const int rows_max = TileRowsMax(static_cast<int>((width + 15) / 16));
    const int64_t tiles = (rows + rows_max - 1) / rows_max;
    p.b = problem.b + n;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t m = rows * t / tiles, end = rows * (t + 1) / tiles;
      p.a = problem.a + m * problem.a_row;
      if (problem.init != nullptr) p.init = problem.init + m * problem.init_row + n;
      p.c = problem.c + m * problem.c_row + n;
      const bool fetches = problem.fetch == Fetch::kNextColumns && t < kTileVectorsMax && n + kWidth + 16 * t < columns;
      p.fetch_from = fetches ? p.b + kWidth + 16 * t : nullptr;
      RunTileOfWidth(&p, static_cast<int>(end - m), width);
    }
  }
}

namespace {
STARRING_AVX512 void TransposeBlock(const float* in, int64_t in_row, float* out, int64_t out_row, int rows,
                                    int columns) {
  const __mmask16 in_mask = static_cast<__mmask16>(0xffff >> (16 - columns));
  const __mmask16 out_mask = static_cast<__mmask16>(0xffff >> (16 - rows));
  __m512 x[16], y[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    x[i] = i < rows ? _mm512_maskz_loadu_ps(in_mask, in + i * in_row) : _mm512_setzero_ps();
  }
  // Pairs of rows, then of pairs, inside each 128-bit lane; then the lanes.
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d p = _mm512_castps_pd(y[i + j]), q = _mm512_castps_pd(y[i + j + 2]);
      x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(p, q));
      x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p, q));
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 a = _mm512_shuffle_f32x4(x[j], x[j + 4], 0x44), b = _mm512_shuffle_f32x4(x[j], x[j + 4], 0xee);
    const __m512 c = _mm512_shuffle_f32x4(x[j + 8], x[j + 12], 0x44),
                 d = _mm512_shuffle_f32x4(x[j + 8], x[j + 12], 0xee);
    y[j] = _mm512_shuffle_f32x4(a, c, 0x88);
    y[j + 4] = _mm512_shuffle_f32x4(a, c, 0xdd);
    y[j + 8] = _mm512_shuffle_f32x4(b, d, 0x88);
    y[j + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i < columns) _mm512_mask_storeu_ps(out + i * out_row, out_mask, y[i]);
  }
}

}  // namespace

STARRING_AVX512 void AddWindows(const WindowSum& g) {
  const int64_t pitch = g.width + 2 * kWindowMargin;
  for (int64_t j = 0; j < g.count; j += 16) {
    const int64_t t = j + g.skip;  // where the first lane lies in window 0
    const int64_t first = t < g.width ? 0 : (t - g.width) / g.step + 1;
    const int64_t last = (t + 15) / g.step < g.windows - 1 ? (t + 15) / g.step : g.windows - 1;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t w = first; w <= last; ++w) {
      sum = _mm512_add_ps(sum, _mm512_loadu_ps(g.in + w * pitch + kWindowMargin + t - w * g.step));
    }
    _mm512_mask_storeu_ps(g.out + j, LanesBelow(g.count - j), sum);
  }
}

STARRING_AVX512 void AddBias(const float* bias, bool relu, int64_t rows, int64_t columns, float* y, int64_t y_row) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += 16) {
      const __mmask16 mask = LanesBelow(columns - c);
      float* const p = y + r * y_row + c;
      __m512 v = _mm512_maskz_loadu_ps(mask, p);
      if (bias != nullptr) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias + c));
      if (relu) v = _mm512_max_ps(_mm512_setzero_ps(), v);
      _mm512_mask_storeu_ps(p, mask, v);
    }
  }
}

void Transpose(const float* in, int64_t in_row, int64_t rows, int64_t columns, float* out, int64_t out_row) {
  const auto block = [&](int64_t r, int64_t c) {
    TransposeBlock(in + r * in_row + c, in_row, out + c * out_row + r, out_row,
                   static_cast<int>(rows - r < 16 ? rows - r : 16),
                   static_cast<int>(columns - c < 16 ? columns - c : 16));
  };
  // Along the rows of the side whose rows are longer: sixteen streams for the prefetchers.
  if (in_row >= out_row) {
    for (int64_t r = 0; r < rows; r += 16) {
      for (int64_t c = 0; c < columns; c += 16) block(r, c);
    }
  } else {
    for (int64_t c = 0; c < columns; c += 16) {
      for (int64_t r = 0; r < rows; r += 16) block(r, c);
    }
  }
}

namespace {

// dy at offset i, masked by y > 0 in memory too.
template <Lanes kLanes>
STARRING_AVX512 inline __m512 MaskedAt(const float* y, float* dy, int64_t i, __mmask16 lanes) {
  const __m512 v = LoadLast<kLanes>(lanes, dy + i);
  if (y == nullptr) return v;
  const __m512 out = LoadLast<kLanes>(lanes, y + i);
  const __m512 masked = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(out, _mm512_setzero_ps(), _CMP_GT_OQ), v);
  if (kLanes == Lanes::kFull) {
    _mm512_storeu_ps(dy + i, masked);
  } else {
    _mm512_mask_storeu_ps(dy + i, lanes, masked);
  }
  return masked;
}

// Fewer than 16 columns: over the flat array, the columns of the lanes repeat after `columns` vectors at the latest.
STARRING_AVX512 void MaskAndSumNarrow(const float* y, float* dy, int64_t count, int64_t columns, float* sums) {
  __m512 sum[16];
  for (int64_t v = 0; v < columns; ++v) sum[v] = _mm512_setzero_ps();
  for (int64_t i = 0, v = 0; i < count; i += 16) {
    sum[v] = _mm512_add_ps(sum[v], MaskedAt<Lanes::kMasked>(y, dy, i, LanesBelow(count - i)));
    if (++v == columns) v = 0;
  }
  if (sums == nullptr) return;
  float lanes[16];
  for (int64_t v = 0; v < columns; ++v) {
    _mm512_storeu_ps(lanes, sum[v]);
    for (int64_t l = 0; l < 16; ++l) sums[(v * 16 + l) % columns] += lanes[l];
  }
}

template <int kRows, Lanes kLanes>
STARRING_AVX512 inline void MaskAndSumVector(const float* y, float* dy, int64_t columns, __mmask16 lanes, float* sums) {
  __m512 v[kRows];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r) {
    v[r] = MaskedAt<kLanes>(y == nullptr ? nullptr : y + r * columns, dy + r * columns, 0, lanes);
  }
  if (sums == nullptr) return;
#pragma GCC unroll 3
  for (int step = kRows / 2; step > 0; step /= 2) {
#pragma GCC unroll 4
    for (int r = 0; r < step; ++r) v[r] = _mm512_add_ps(v[r], v[r + step]);
  }
  _mm512_mask_storeu_ps(sums, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, sums), v[0]));
}

// Eight rows at a time, from left to right: as many streams as the prefetchers follow, and one pass over `sums`.
template <int kRows>
STARRING_AVX512 void MaskAndSumRows(const float* y, float* dy, int64_t columns, float* sums) {
  const auto at = [](auto* p, int64_t c) { return p == nullptr ? nullptr : p + c; };
  int64_t c = 0;
  for (; c + 16 <= columns; c += 16) {
    MaskAndSumVector<kRows, Lanes::kFull>(at(y, c), dy + c, columns, 0xffff, at(sums, c));
  }
  if (c == columns) return;
  MaskAndSumVector<kRows, Lanes::kMasked>(at(y, c), dy + c, columns, LanesBelow(columns - c), at(sums, c));
}

}  // namespace

STARRING_AVX512 void MaskAndSum(const float* y, float* dy, int64_t rows, int64_t columns, float* sums) {
  if (y == nullptr && sums == nullptr) return;
  if (columns < 16) return MaskAndSumNarrow(y, dy, rows * columns, columns, sums);
  const auto y_row = [&](int64_t r) { return y == nullptr ? nullptr : y + r * columns; };
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8) MaskAndSumRows<8>(y_row(r), dy + r * columns, columns, sums);
  for (; r < rows; ++r) MaskAndSumRows<1>(y_row(r), dy + r * columns, columns, sums);
}

}  // namespace starring
