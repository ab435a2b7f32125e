#include "kernels/cpu/halving_pool.h"

#include <immintrin.h>

#include <algorithm>

namespace starring {
namespace {

#define STARRING_AVX512 __attribute__((target("avx512f")))

inline __mmask16 LanesBelow(int64_t count) {
  return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1);
}

// Where `v` beats `best`: greater, or NaN (PyTorch's rule).
STARRING_AVX512 inline __mmask16 Beats(__m512 v, __m512 best) {
  return _mm512_cmp_ps_mask(v, best, _CMP_GT_OQ) | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
}

}  // namespace

STARRING_AVX512 void HalvingForward(const HalvingPool& pool, const float* x, float* y, HalvingPool::Winners* winners) {
  const int64_t channels = pool.channels, row = pool.in_width * channels;
  for (int64_t h = 0; h < pool.out_height(); ++h) {
    const float* in = x + 2 * h * row;
    for (int64_t w = 0; w < pool.out_width(); ++w, in += 2 * channels, y += channels) {
      for (int64_t c = 0; c < channels; c += 16) {
        const __mmask16 lanes = LanesBelow(channels - c);
        const __m512 v0 = _mm512_maskz_loadu_ps(lanes, in + c);
        const __m512 v1 = _mm512_maskz_loadu_ps(lanes, in + channels + c);
        const __m512 v2 = _mm512_maskz_loadu_ps(lanes, in + row + c);
        const __m512 v3 = _mm512_maskz_loadu_ps(lanes, in + row + channels + c);
        const __mmask16 wins1 = Beats(v1, v0);
        const __m512 best1 = _mm512_mask_mov_ps(v0, wins1, v1);
        const __mmask16 wins2 = Beats(v2, best1);
        const __m512 best2 = _mm512_mask_mov_ps(best1, wins2, v2);
        const __mmask16 wins3 = Beats(v3, best2);
        _mm512_mask_storeu_ps(y + c, lanes, _mm512_mask_mov_ps(best2, wins3, v3));
        winners->low = static_cast<uint16_t>(wins3 | (wins1 & ~wins2));
        winners->high = static_cast<uint16_t>(wins2 | wins3);
        ++winners;
      }
    }
  }
}

STARRING_AVX512 void HalvingBackward(const HalvingPool& pool, const float* dy, const HalvingPool::Winners* winners,
                                     float* dx) {
  const int64_t channels = pool.channels, row = pool.in_width * channels;
  for (int64_t h = 0; h < pool.out_height(); ++h) {
    float* out = dx + 2 * h * row;
    for (int64_t w = 0; w < pool.out_width(); ++w, out += 2 * channels, dy += channels) {
      for (int64_t c = 0; c < channels; c += 16) {
        const __mmask16 lanes = LanesBelow(channels - c);
        const __m512 v = _mm512_maskz_loadu_ps(lanes, dy + c);
        const uint32_t low = winners->low, high = winners->high;
        ++winners;
        const auto only = [](uint32_t mask) { return static_cast<__mmask16>(mask); };
        _mm512_mask_storeu_ps(out + c, lanes, _mm512_maskz_mov_ps(only(~high & ~low), v));
        _mm512_mask_storeu_ps(out + channels + c, lanes, _mm512_maskz_mov_ps(only(~high & low), v));
        _mm512_mask_storeu_ps(out + row + c, lanes, _mm512_maskz_mov_ps(only(high & ~low), v));
        _mm512_mask_storeu_ps(out + row + channels + c, lanes, _mm512_maskz_mov_ps(only(high & low), v));
      }
    }
    if (pool.in_width % 2 != 0) {
      std::fill_n(out, channels, 0.0f);
      std::fill_n(out + row, channels, 0.0f);
    }
  }
  if (pool.in_height % 2 != 0) std::fill_n(dx + (pool.in_height - 1) * row, row, 0.0f);
}

}  // namespace starring
