#include "kernels/cpu/halving_pool.h"

#include <immintrin.h>

#include <algorithm>

namespace starring {
namespace {

#define STARRING_AVX512 __attribute__((target("avx512f")))
#define STARRING_AVX512_INLINE __attribute__((target("avx512f"), always_inline)) inline

inline __mmask16 LanesBelow(int64_t count) {
  return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1);
}

// Where `v` beats `best`: greater, or NaN (PyTorch's rule).
STARRING_AVX512_INLINE __mmask16 Beats(__m512 v, __m512 best) {
  return _mm512_cmp_ps_mask(v, best, _CMP_GT_OQ) | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
}

// The maximum of four vectors in the order of the window, and the number of the winner, as HalvingPool::Winners.
STARRING_AVX512_INLINE __m512 MaximumOf(__m512 v0, __m512 v1, __m512 v2, __m512 v3, HalvingPool::Winners* winners) {
  const __mmask16 wins1 = Beats(v1, v0);
  const __m512 best1 = _mm512_mask_mov_ps(v0, wins1, v1);
  const __mmask16 wins2 = Beats(v2, best1);
  const __m512 best2 = _mm512_mask_mov_ps(best1, wins2, v2);
  const __mmask16 wins3 = Beats(v3, best2);
  // The last place that beat the best before it is the winner. In binary 1 is 01, 2 is 10 and 3 is 11: the upper bit is
  // set by places 2 and 3, the lower by 3, and by 1 unless 2 won after it. If 3 won, both are set whatever came before.
  const uint32_t low = wins3 | (wins1 & ~wins2), high = wins2 | wins3;
  *winners = low | high << 16;
  return _mm512_mask_mov_ps(best2, wins3, v3);
}

// For each of the four places of a window: dy, or zero where another place won.
struct Shares {
  __m512 v[4];
};
STARRING_AVX512_INLINE Shares SharesOf(__m512 dy, HalvingPool::Winners winners) {
  const uint32_t low = winners, high = winners >> 16;
  // Zeros too are stored: dx is then written whole and needs no pass that clears it first.
  const auto only = [](uint32_t mask) { return static_cast<__mmask16>(mask); };
  return {{_mm512_maskz_mov_ps(only(~high & ~low), dy), _mm512_maskz_mov_ps(only(~high & low), dy),
           _mm512_maskz_mov_ps(only(high & ~low), dy), _mm512_maskz_mov_ps(only(high & low), dy)}};
}

// With several output pixels a vector, their inputs are at most 32 neighbouring floats of each of two rows. Lane
// numbers of 16 and above are lanes of a second vector, as vpermt2ps counts them.
struct Neighbours {
  __m512i left, right;    // for each output, the lane of its input in the window's left and right column
  __m512i first, second;  // for each of the 32 inputs, the lane of its output; plus 16 for the window's right column
};

// Output lane l is channel l % c of pixel l / c. Its window begins at input pixel 2 * (l / c): that is the left column;
// the right one is c floats further. The numbers are made once per image, and then used for every vector.
STARRING_AVX512 Neighbours NeighboursOf(int64_t channels) {
  alignas(64) int32_t left[16] = {}, right[16] = {}, inputs[32] = {};
  for (int32_t l = 0; l < 16 / channels * channels; ++l) {
    const int32_t c = static_cast<int32_t>(channels), at = l / c * 2 * c + l % c;
    left[l] = at;
    right[l] = at + c;
    inputs[at] = l;
    inputs[at + c] = 16 + l;
  }
  return {_mm512_load_si512(left), _mm512_load_si512(right), _mm512_load_si512(inputs), _mm512_load_si512(inputs + 16)};
}

// The lanes that exist in a vector of `pixels` outputs, and in the two vectors of their inputs.
struct Extent {
  __mmask16 outputs, first, second;
};
STARRING_AVX512_INLINE Extent ExtentOf(int64_t pixels, int64_t channels) {
  const int64_t outputs = pixels * channels;
  return {LanesBelow(outputs), LanesBelow(2 * outputs), 2 * outputs > 16 ? LanesBelow(2 * outputs - 16) : __mmask16{0}};
}

STARRING_AVX512 void ForwardNarrow(HalvingPool pool, const float* x, float* y, HalvingPool::Winners* winners) {
  const Neighbours lanes = NeighboursOf(pool.channels);
  const int64_t row = pool.in_width * pool.channels, out_width = pool.out_width(), out_height = pool.out_height();
  const int64_t pixels = pool.pixels_per_vector(), outputs = pixels * pool.channels;
  for (int64_t h = 0; h < out_height; ++h) {
    const float* in = x + 2 * h * row;
    float* out = y + h * out_width * pool.channels;
    Extent extent = ExtentOf(pixels, pool.channels);
    // Lanes beyond the last whole pixel are masked out: their memory belongs to the next vector, or to the next row.
    for (int64_t w = 0; w < out_width; w += pixels, in += 2 * outputs, out += outputs) {
      // The last vector of a row: its lanes beyond the row are neither read nor written.
      if (w + pixels > out_width) extent = ExtentOf(out_width - w, pool.channels);
      const __m512 top = _mm512_maskz_loadu_ps(extent.first, in);
      const __m512 top2 = _mm512_maskz_loadu_ps(extent.second, in + 16);
      const __m512 low = _mm512_maskz_loadu_ps(extent.first, in + row);
      const __m512 low2 = _mm512_maskz_loadu_ps(extent.second, in + row + 16);
      const __m512 best = MaximumOf(
          _mm512_permutex2var_ps(top, lanes.left, top2), _mm512_permutex2var_ps(top, lanes.right, top2),
          _mm512_permutex2var_ps(low, lanes.left, low2), _mm512_permutex2var_ps(low, lanes.right, low2), winners++);
      _mm512_mask_storeu_ps(out, extent.outputs, best);
    }
  }
}

STARRING_AVX512 void BackwardNarrow(HalvingPool pool, const float* dy, const HalvingPool::Winners* winners, float* dx) {
  const Neighbours lanes = NeighboursOf(pool.channels);
  const int64_t row = pool.in_width * pool.channels, out_width = pool.out_width(), out_height = pool.out_height();
  const int64_t pixels = pool.pixels_per_vector(), outputs = pixels * pool.channels;
  for (int64_t h = 0; h < out_height; ++h) {
    const float* in = dy + h * out_width * pool.channels;
    float* out = dx + 2 * h * row;
    Extent extent = ExtentOf(pixels, pool.channels);
    for (int64_t w = 0; w < out_width; w += pixels, in += outputs, out += 2 * outputs) {
      if (w + pixels > out_width) extent = ExtentOf(out_width - w, pool.channels);
      const Shares shares = SharesOf(_mm512_maskz_loadu_ps(extent.outputs, in), *winners++);
#pragma GCC unroll 2
      for (int r = 0; r < 2; ++r) {
        const __m512 left = shares.v[2 * r], right = shares.v[2 * r + 1];
        _mm512_mask_storeu_ps(out + r * row, extent.first, _mm512_permutex2var_ps(left, lanes.first, right));
        _mm512_mask_storeu_ps(out + r * row + 16, extent.second, _mm512_permutex2var_ps(left, lanes.second, right));
      }
    }
  }
}

// With more than 8 channels a vector holds one output pixel only. The lanes of its four inputs are in the same order,
// so no permutation is needed.
STARRING_AVX512 void BackwardWide(HalvingPool pool, const float* dy, const HalvingPool::Winners* winners, float* dx) {
  const int64_t channels = pool.channels, row = pool.in_width * channels;
  for (int64_t h = 0; h < pool.out_height(); ++h) {
    float* out = dx + 2 * h * row;
    for (int64_t w = 0; w < pool.out_width(); ++w, out += 2 * channels, dy += channels) {
      for (int64_t c = 0; c < channels; c += 16) {
        const __mmask16 lanes = LanesBelow(channels - c);
        const Shares shares = SharesOf(_mm512_maskz_loadu_ps(lanes, dy + c), *winners++);
        _mm512_mask_storeu_ps(out + c, lanes, shares.v[0]);
        _mm512_mask_storeu_ps(out + channels + c, lanes, shares.v[1]);
        _mm512_mask_storeu_ps(out + row + c, lanes, shares.v[2]);
        _mm512_mask_storeu_ps(out + row + channels + c, lanes, shares.v[3]);
      }
    }
  }
}

STARRING_AVX512 void ForwardWide(HalvingPool pool, const float* x, float* y, HalvingPool::Winners* winners) {
  const int64_t channels = pool.channels, row = pool.in_width * channels;
  for (int64_t h = 0; h < pool.out_height(); ++h) {
    const float* in = x + 2 * h * row;
    for (int64_t w = 0; w < pool.out_width(); ++w, in += 2 * channels, y += channels) {
      for (int64_t c = 0; c < channels; c += 16) {
        const __mmask16 lanes = LanesBelow(channels - c);
        const __m512 best =
            MaximumOf(_mm512_maskz_loadu_ps(lanes, in + c), _mm512_maskz_loadu_ps(lanes, in + channels + c),
                      _mm512_maskz_loadu_ps(lanes, in + row + c), _mm512_maskz_loadu_ps(lanes, in + row + channels + c),
                      winners++);
        _mm512_mask_storeu_ps(y + c, lanes, best);
      }
    }
  }
}

// AVX2 has no masks for lanes: a mask is a vector whose lanes are all ones or zero. Masked loads and stores are slow:
// with them alone lenet5 gains 15 % on a Zen 3 core, and 24 as it is here. A vector that has more lanes than there are
// channels is read and written whole, as long as it ends within the row of outputs: the lanes beyond the pixel belong
// to pixels that are written later.

#define STARRING_AVX2 __attribute__((target("avx2")))
#define STARRING_AVX2_INLINE __attribute__((target("avx2"), always_inline)) inline

// Which lanes of a vector at channel `c` of output pixel `w` are read and written.
struct Lanes8 {
  bool all;
  __m256i mask;  // unless all are
};
STARRING_AVX2_INLINE Lanes8 LanesAt(const HalvingPool& pool, int64_t w, int64_t c) {
  const int64_t channels = pool.channels;
  // The windows of these outputs have twice as many floats in a row, so the loads end within it as well.
  const bool all = channels - c >= 8 || (channels < 8 && w * channels + 8 <= pool.out_width() * channels);
  const __m256i count = _mm256_set1_epi32(static_cast<int32_t>(std::min<int64_t>(channels - c, 8)));
  return {all, _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))};
}
STARRING_AVX2_INLINE __m256 Load(const Lanes8& lanes, const float* from) {
  return lanes.all ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, lanes.mask);
}
STARRING_AVX2_INLINE void Store(const Lanes8& lanes, float* to, __m256 v) {
  if (lanes.all) return _mm256_storeu_ps(to, v);
  _mm256_maskstore_ps(to, lanes.mask, v);
}

// As Beats and MaximumOf above.
STARRING_AVX2_INLINE __m256 Beats8(__m256 v, __m256 best) {
  return _mm256_or_ps(_mm256_cmp_ps(v, best, _CMP_GT_OQ), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
STARRING_AVX2_INLINE __m256 MaximumOf8(__m256 v0, __m256 v1, __m256 v2, __m256 v3, HalvingPool::Winners* winners) {
  const __m256 wins1 = Beats8(v1, v0);
  const __m256 best1 = _mm256_blendv_ps(v0, v1, wins1);
  const __m256 wins2 = Beats8(v2, best1);
  const __m256 best2 = _mm256_blendv_ps(best1, v2, wins2);
  const __m256 wins3 = Beats8(v3, best2);
  const __m256 low = _mm256_or_ps(wins3, _mm256_andnot_ps(wins2, wins1)), high = _mm256_or_ps(wins2, wins3);
  *winners = static_cast<uint32_t>(_mm256_movemask_ps(low)) | static_cast<uint32_t>(_mm256_movemask_ps(high)) << 16;
  return _mm256_blendv_ps(best2, v3, wins3);
}

// All ones in the lanes whose bit is set in the lower 8 bits of `bits`.
STARRING_AVX2_INLINE __m256 LanesOf(uint32_t bits) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(bits)), bit);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit));
}

STARRING_AVX2 void Forward8(HalvingPool pool, const float* x, float* y, HalvingPool::Winners* winners) {
  const int64_t channels = pool.channels, row = pool.in_width * channels;
  for (int64_t h = 0; h < pool.out_height(); ++h) {
    const float* in = x + 2 * h * row;
    for (int64_t w = 0; w < pool.out_width(); ++w, in += 2 * channels, y += channels) {
      for (int64_t c = 0; c < channels; c += 8) {
        const Lanes8 lanes = LanesAt(pool, w, c);
        Store(lanes, y + c,
              MaximumOf8(Load(lanes, in + c), Load(lanes, in + channels + c), Load(lanes, in + row + c),
                         Load(lanes, in + row + channels + c), winners++));
      }
    }
  }
}

STARRING_AVX2 void Backward8(HalvingPool pool, const float* dy, const HalvingPool::Winners* winners, float* dx) {
  const int64_t channels = pool.channels, row = pool.in_width * channels;
  for (int64_t h = 0; h < pool.out_height(); ++h) {
    float* out = dx + 2 * h * row;
    for (int64_t w = 0; w < pool.out_width(); ++w, out += 2 * channels, dy += channels) {
      for (int64_t c = 0; c < channels; c += 8) {
        const Lanes8 lanes = LanesAt(pool, w, c);
        const __m256 low = LanesOf(*winners), high = LanesOf(*winners >> 16), share = Load(lanes, dy + c);
        ++winners;
        const __m256 top = _mm256_andnot_ps(high, share), bottom = _mm256_and_ps(high, share);
        // From left to right: a whole vector may reach into the next pixel.
        Store(lanes, out + c, _mm256_andnot_ps(low, top));
        Store(lanes, out + channels + c, _mm256_and_ps(low, top));
        Store(lanes, out + row + c, _mm256_andnot_ps(low, bottom));
        Store(lanes, out + row + channels + c, _mm256_and_ps(low, bottom));
      }
    }
  }
}

}  // namespace

void HalvingForward(const HalvingPool& pool, const float* x, float* y, HalvingPool::Winners* winners) {
  if (pool.lanes == 8) return Forward8(pool, x, y, winners);
  if (pool.pixels_per_vector() > 1) return ForwardNarrow(pool, x, y, winners);
  ForwardWide(pool, x, y, winners);
}

void HalvingBackward(const HalvingPool& pool, const float* dy, const HalvingPool::Winners* winners, float* dx) {
  if (pool.lanes == 8) {
    Backward8(pool, dy, winners, dx);
  } else if (pool.pixels_per_vector() > 1) {
    BackwardNarrow(pool, dy, winners, dx);
  } else {
    BackwardWide(pool, dy, winners, dx);
  }
  // An odd last row or column is in no window, and its gradient is zero. The loops above do not write there.
  const int64_t row = pool.in_width * pool.channels;
  if (pool.in_width % 2 != 0) {
    for (int64_t h = 0; h < pool.in_height; ++h) std::fill_n(dx + (h + 1) * row - pool.channels, pool.channels, 0.0f);
  }
  if (pool.in_height % 2 != 0) std::fill_n(dx + (pool.in_height - 1) * row, row, 0.0f);
}

}  // namespace starring
