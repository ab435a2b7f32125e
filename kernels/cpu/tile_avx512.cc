#include "kernels/cpu/tile_avx512.h"

#include <immintrin.h>

#include <utility>

namespace starring {
namespace {

#define STARRING_AVX512 __attribute__((target("avx512f")))

inline __mmask16 LanesBelow(int64_t count) {
  return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1);
}

template <int kRows, int kVectors>
STARRING_AVX512 void Tile(const TileProblem& p) {
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
      sum[r][v] = v == kLast ? _mm512_maskz_loadu_ps(mask, init) : _mm512_loadu_ps(init);
    }
  }
  for (int64_t i = 0; i < p.inner; ++i) {
    const float* a = p.a + i * p.a_inner;
    const float* b = p.b + i * p.b_inner;
    for (int64_t k = 0; k < p.depth; ++k) {
      __m512 row[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        row[v] = v == kLast ? _mm512_maskz_loadu_ps(mask, b + 16 * v) : _mm512_loadu_ps(b + 16 * v);
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const __m512 factor = _mm512_set1_ps(a[r * p.a_row]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(factor, row[v], sum[r][v]);
      }
      a += p.a_k;
      b += p.b_k;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      // The second operand comes through when one is NaN: a NaN survives.
      if (p.relu) sum[r][v] = _mm512_max_ps(_mm512_setzero_ps(), sum[r][v]);
      float* const c = p.c + r * p.c_row + 16 * v;
      if (v == kLast) {
        _mm512_mask_storeu_ps(c, mask, sum[r][v]);
      } else {
        _mm512_storeu_ps(c, sum[r][v]);
      }
    }
  }
}

using TileFunction = void (*)(const TileProblem&);
template <int kVectors, int... kRows>
constexpr auto TilesOf(std::integer_sequence<int, kRows...>) {
  struct Table {
    TileFunction rows[sizeof...(kRows)];
  };
  return Table{{Tile<kRows + 1, kVectors>...}};
}
template <int kVectors>
constexpr auto kTiles = TilesOf<kVectors>(std::make_integer_sequence<int, TileRowsMax(kVectors)>());

}  // namespace

void RunTile(const TileProblem& problem, int rows, int vectors) {
  switch (vectors) {
    case 1:
      return kTiles<1>.rows[rows - 1](problem);
    case 2:
      return kTiles<2>.rows[rows - 1](problem);
    case 3:
      return kTiles<3>.rows[rows - 1](problem);
    default:
      return kTiles<4>.rows[rows - 1](problem);
  }
}

void RunTiles(const TileProblem& problem, int64_t rows, int64_t columns) {
  for (int64_t n = 0; n < columns; n += 16 * kTileVectorsMax) {
    const int64_t width = columns - n < 16 * kTileVectorsMax ? columns - n : 16 * kTileVectorsMax;
    const int vectors = static_cast<int>((width + 15) / 16);
    const int rows_max = TileRowsMax(vectors);
    const int64_t tiles = (rows + rows_max - 1) / rows_max;
    TileProblem p = problem;
    p.last_mask = static_cast<uint16_t>(0xffff >> (16 * vectors - width));
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t m = rows * t / tiles, end = rows * (t + 1) / tiles;
      p.a = problem.a + m * problem.a_row;
      p.b = problem.b + n;
      if (problem.init != nullptr) p.init = problem.init + m * problem.init_row + n;
      p.c = problem.c + m * problem.c_row + n;
      RunTile(p, static_cast<int>(end - m), vectors);
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
  for (int64_t r = 0; r < rows; r += 16) {
    const int height = static_cast<int>(rows - r < 16 ? rows - r : 16);
    for (int64_t c = 0; c < columns; c += 16) {
      const int width = static_cast<int>(columns - c < 16 ? columns - c : 16);
      TransposeBlock(in + r * in_row + c, in_row, out + c * out_row + r, out_row, height, width);
    }
  }
}

namespace {

// dy at offset i, masked by y > 0 in memory too.
STARRING_AVX512 inline __m512 MaskedAt(const float* y, float* dy, int64_t i, __mmask16 lanes) {
  const __m512 v = _mm512_maskz_loadu_ps(lanes, dy + i);
  if (y == nullptr) return v;
  const __m512 out = _mm512_maskz_loadu_ps(lanes, y + i);
  const __m512 masked = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(out, _mm512_setzero_ps(), _CMP_GT_OQ), v);
  _mm512_mask_storeu_ps(dy + i, lanes, masked);
  return masked;
}

// Fewer than 16 columns: over the flat array, the columns of the lanes repeat after `columns` vectors at the latest.
STARRING_AVX512 void MaskAndSumNarrow(const float* y, float* dy, int64_t count, int64_t columns, float* sums) {
  __m512 sum[16];
  for (int64_t v = 0; v < columns; ++v) sum[v] = _mm512_setzero_ps();
  for (int64_t i = 0, v = 0; i < count; i += 16) {
    sum[v] = _mm512_add_ps(sum[v], MaskedAt(y, dy, i, LanesBelow(count - i)));
    if (++v == columns) v = 0;
  }
  if (sums == nullptr) return;
  float lanes[16];
  for (int64_t v = 0; v < columns; ++v) {
    _mm512_storeu_ps(lanes, sum[v]);
    for (int64_t l = 0; l < 16; ++l) sums[(v * 16 + l) % columns] += lanes[l];
  }
}

}  // namespace

STARRING_AVX512 void MaskAndSum(const float* y, float* dy, int64_t rows, int64_t columns, float* sums) {
  if (y == nullptr && sums == nullptr) return;
  if (columns < 16) return MaskAndSumNarrow(y, dy, rows * columns, columns, sums);
  for (int64_t c = 0; c < columns; c += 16) {
    const __mmask16 lanes = LanesBelow(columns - c);
    // Four sums hide the latency of an addition.
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
#pragma GCC unroll 4
      for (int64_t j = 0; j < 4; ++j) {
        sum[j] = _mm512_add_ps(sum[j], MaskedAt(y, dy, (r + j) * columns + c, lanes));
      }
    }
    for (; r < rows; ++r) sum[0] = _mm512_add_ps(sum[0], MaskedAt(y, dy, r * columns + c, lanes));
    if (sums == nullptr) continue;
    const __m512 total = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
    _mm512_mask_storeu_ps(sums + c, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, sums + c), total));
  }
}

}  // namespace starring
