#include "kernels/cpu/tiles/row_lanes_avx512.h"

#include <immintrin.h>

#include <algorithm>
#include <utility>

namespace starring {
namespace {

#define STARRING_AVX512 __attribute__((target("avx512f")))
#define STARRING_AVX512_INLINE __attribute__((target("avx512f"), always_inline)) inline

// A column of vectors that is walked down: one vector of every output row.
struct Column {
  int64_t first = 0;         // its first float
  const float* x = nullptr;  // that float's pixel in input row 0, at the part's first kernel column
  __mmask16 lanes = 0;       // those that exist
};

STARRING_AVX512_INLINE Column ColumnAt(const RowPart& p, int64_t v) {
  const int64_t left = p.out_width * p.channels - 16 * v;
  return {.first = 16 * v,
          .x = p.x + 16 * v / p.channels,
          .lanes = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1)};
}

// The pixel of each lane, counted from the pixel of the vector's first lane.
STARRING_AVX512_INLINE __m512i PixelsOf(int64_t phase, int64_t channels) {
  alignas(64) int32_t pixels[16];
  const int64_t first = 16 * phase % channels;
  for (int64_t l = 0; l < 16; ++l) pixels[l] = static_cast<int32_t>((first + l) / channels);
  return _mm512_load_si512(pixels);
}

// Rows are counted from the first input row that output row 0 needs: input row r goes into output row r - kh, for every
// kernel row kh. kHeight output rows are under way at any time, one for each kernel row; output row h has place h %
// kHeight in the registers. The walk is unrolled by kHeight rows, so that kPlace = r % kHeight is a constant: an index
// that is not known at compile time would put the array into memory.
constexpr int PlaceOf(int place, int kh, int height) { return (place + height - kh) % height; }

// Whether row r is a row of x. Rows outside hold zeros, which add nothing, so they are skipped.
inline bool Exists(const RowPart& p, int64_t r) { return r >= p.top && r - p.top < p.x_height; }

template <int kHeight, int kWidth>
struct ForwardRegisters {
  __m512i pixels;
  __m512 init;
  __m512 weight[kHeight][kWidth];
  __m512 sum[kHeight];
};

template <int kHeight, int kWidth, int kPlace>
STARRING_AVX512_INLINE void Row(const RowPart& p, const RowForward& f, const Column& column, int64_t r,
                                ForwardRegisters<kHeight, kWidth>& g) {
  const int64_t y_row = p.out_width * p.channels;
  float* const y = f.y + column.first;
  // Output row r begins, in the place of row r - kHeight, which was stored one row ago.
  if (r < p.out_height) {
    g.sum[kPlace] = f.init != nullptr ? g.init : _mm512_maskz_loadu_ps(column.lanes, y + r * y_row);
  }
  if (Exists(p, r)) {
    const float* const x = column.x + (r - p.top) * p.x_row;
    // Near the top and bottom some places have no output row, and the products go into them too. That is harmless: such
    // a place is overwritten before its next use, or never stored. A test for each would cost more than the products.
#pragma GCC unroll 5
    for (int kw = 0; kw < kWidth; ++kw) {
      const __m512 in = _mm512_permutexvar_ps(g.pixels, _mm512_loadu_ps(x + kw));
#pragma GCC unroll 5
      for (int kh = 0; kh < kHeight; ++kh) {
        __m512& sum = g.sum[PlaceOf(kPlace, kh, kHeight)];
        sum = _mm512_fmadd_ps(in, g.weight[kh][kw], sum);
      }
    }
  }
  // Input row r was the last that output row r - (kHeight - 1) needs.
  const int64_t done = r - (kHeight - 1);
  if (done < 0 || done >= p.out_height) return;
  __m512 out = g.sum[PlaceOf(kPlace, kHeight - 1, kHeight)];
  // In this order of operands a NaN survives (tile_loops.h, ReluOf).
  if (f.relu) out = _mm512_max_ps(_mm512_setzero_ps(), out);
  _mm512_mask_storeu_ps(y + done * y_row, column.lanes, out);
}

// A part of 5 x 5 taps has 25 sums and 5 vectors of dy, about what 32 registers hold: a larger one would spill in the
// inner loop. That is why parts end at kRowPartMax.
template <int kHeight, int kWidth>
struct GradientRegisters {
  __m512i pixels;
  __m512 bias_sum;
  __m512 sum[kHeight][kWidth];
  __m512 dy[kHeight];
};

template <int kHeight, int kWidth, int kPlace>
STARRING_AVX512_INLINE void Row(const RowPart& p, const RowGradient& f, const Column& column, int64_t r,
                                GradientRegisters<kHeight, kWidth>& g) {
  if (r < p.out_height) {
    const int64_t at = r * p.out_width * p.channels + column.first;
    __m512 dy = _mm512_maskz_loadu_ps(column.lanes, f.dy + at);
    if (f.y != nullptr) {
      const __m512 y = _mm512_maskz_loadu_ps(column.lanes, f.y + at);
      dy = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_GT_OQ), dy);
    }
    g.dy[kPlace] = dy;
    g.bias_sum = _mm512_add_ps(g.bias_sum, dy);
  } else {
    // Row r is below the last output row. The place still holds the dy of row r - kHeight, which must not be multiplied
    // again.
    g.dy[kPlace] = _mm512_setzero_ps();
  }
  if (!Exists(p, r)) return;
  const float* const x = column.x + (r - p.top) * p.x_row;
#pragma GCC unroll 5
  for (int kw = 0; kw < kWidth; ++kw) {
    const __m512 in = _mm512_permutexvar_ps(g.pixels, _mm512_loadu_ps(x + kw));
#pragma GCC unroll 5
    for (int kh = 0; kh < kHeight; ++kh) {
      g.sum[kh][kw] = _mm512_fmadd_ps(in, g.dy[PlaceOf(kPlace, kh, kHeight)], g.sum[kh][kw]);
    }
  }
}

// Input rows 0 to out_height + kHeight - 2, and up to kHeight - 1 more that do nothing.
template <int kHeight, int kWidth, typename Operation, typename Registers, int... kPlaces>
STARRING_AVX512_INLINE void WalkDown(const RowPart& p, const Operation& f, const Column& column, Registers& g,
                                     std::integer_sequence<int, kPlaces...>) {
  for (int64_t r = 0; r < p.out_height + kHeight - 1; r += kHeight) {
    (Row<kHeight, kWidth, kPlaces>(p, f, column, r + kPlaces, g), ...);
  }
}

// The arguments are copies, which no store to y can change: through references they would be loaded again after it.
// All vectors of one phase are walked before the next phase, so that weights are loaded once a phase.
template <int kHeight, int kWidth>
STARRING_AVX512 void Part(RowPart p, RowForward f) {
  const int64_t phases = RowPhases(p.channels), pitch = p.channels + 15;
  const int64_t vectors = (p.out_width * p.channels + 15) / 16;
  for (int64_t phase = 0; phase < std::min(phases, vectors); ++phase) {
    const int64_t channel = 16 * phase % p.channels;
    ForwardRegisters<kHeight, kWidth> g;
    g.pixels = PixelsOf(phase, p.channels);
    g.init = f.init != nullptr ? _mm512_loadu_ps(f.init + channel) : _mm512_setzero_ps();
#pragma GCC unroll 5
    for (int kh = 0; kh < kHeight; ++kh) {
      g.sum[kh] = _mm512_setzero_ps();
#pragma GCC unroll 5
      for (int kw = 0; kw < kWidth; ++kw) {
        g.weight[kh][kw] = _mm512_loadu_ps(f.weight + (kh * kWidth + kw) * pitch + channel);
      }
    }
    for (int64_t v = phase; v < vectors; v += phases) {
      WalkDown<kHeight, kWidth>(p, f, ColumnAt(p, v), g, std::make_integer_sequence<int, kHeight>());
    }
  }
}

// As above: the sums of a phase stay in registers for all of its vectors.
template <int kHeight, int kWidth>
STARRING_AVX512 void Part(RowPart p, RowGradient f) {
  const int64_t phases = RowPhases(p.channels);
  const int64_t vectors = (p.out_width * p.channels + 15) / 16;
  for (int64_t phase = 0; phase < std::min(phases, vectors); ++phase) {
    float* const sums = f.sums + phase * kHeight * kWidth * 16;
    GradientRegisters<kHeight, kWidth> g;
    g.pixels = PixelsOf(phase, p.channels);
    g.bias_sum = f.bias_sums == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(f.bias_sums + phase * 16);
#pragma GCC unroll 5
    for (int kh = 0; kh < kHeight; ++kh) {
      g.dy[kh] = _mm512_setzero_ps();
#pragma GCC unroll 5
      for (int kw = 0; kw < kWidth; ++kw) g.sum[kh][kw] = _mm512_loadu_ps(sums + (kh * kWidth + kw) * 16);
    }
    for (int64_t v = phase; v < vectors; v += phases) {
      WalkDown<kHeight, kWidth>(p, f, ColumnAt(p, v), g, std::make_integer_sequence<int, kHeight>());
    }
    if (f.bias_sums != nullptr) _mm512_storeu_ps(f.bias_sums + phase * 16, g.bias_sum);
#pragma GCC unroll 5
    for (int kh = 0; kh < kHeight; ++kh) {
#pragma GCC unroll 5
      for (int kw = 0; kw < kWidth; ++kw) _mm512_storeu_ps(sums + (kh * kWidth + kw) * 16, g.sum[kh][kw]);
    }
  }
}

// A function for each size of a part, by kernel_height - 1 and kernel_width - 1.
template <typename Operation>
struct PartTable {
  void (*at[kRowPartMax][kRowPartMax])(RowPart, Operation);
};
template <typename Operation, int... kParts>
constexpr PartTable<Operation> TableOf(std::integer_sequence<int, kParts...>) {
  PartTable<Operation> table = {};
  ((table.at[kParts / kRowPartMax][kParts % kRowPartMax] = Part<kParts / kRowPartMax + 1, kParts % kRowPartMax + 1>),
   ...);
  return table;
}
template <typename Operation>
constexpr auto kTable = TableOf<Operation>(std::make_integer_sequence<int, kRowPartMax * kRowPartMax>());

}  // namespace

void RunRowForward(const RowPart& part, const RowForward& forward) {
  kTable<RowForward>.at[part.kernel_height - 1][part.kernel_width - 1](part, forward);
}

void RunRowGradient(const RowPart& part, const RowGradient& gradient) {
  kTable<RowGradient>.at[part.kernel_height - 1][part.kernel_width - 1](part, gradient);
}

}  // namespace starring
