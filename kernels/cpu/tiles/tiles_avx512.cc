#include <immintrin.h>

#include "kernels/cpu/tiles/tiles.h"

#define STARRING_TARGET __attribute__((target("avx512f")))

namespace starring {
namespace {

using Vector = __m512;
using Mask = __mmask16;
constexpr int kLanes = 16;
constexpr int kVectorsMax = 4;
// A full tile has at most 24 sums, the vectors of one row of B and one factor: with four vectors, 29 of the 32
// registers. RowsMax(1) is the largest, by which TileTable has its size.
constexpr int RowsMax(int vectors) { return vectors <= 2 ? 12 : vectors == 3 ? 8 : 6; }

STARRING_TARGET inline Mask LanesBelow(int64_t count) {
  // The first case is needed: `count` may be all that is left of a row, and a shift by 32 or more is undefined.
  return count >= kLanes ? Mask{0xffff} : static_cast<Mask>((1u << count) - 1);
}
STARRING_TARGET inline Vector Load(const float* p) { return _mm512_loadu_ps(p); }
// As with AVX2, lanes that do not exist are 0 and are not read.
STARRING_TARGET inline Vector Load(Mask mask, const float* p) { return _mm512_maskz_loadu_ps(mask, p); }
STARRING_TARGET inline void Store(Vector v, float* p) { _mm512_storeu_ps(p, v); }
STARRING_TARGET inline void Store(Mask mask, Vector v, float* p) { _mm512_mask_storeu_ps(p, mask, v); }
STARRING_TARGET inline Vector Broadcast(float x) { return _mm512_set1_ps(x); }
STARRING_TARGET inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
STARRING_TARGET inline Vector Max(Vector a, Vector b) { return _mm512_max_ps(a, b); }

}  // namespace
}  // namespace starring

#include "kernels/cpu/tiles/tile_loops.h"

namespace starring {
const Tiles kTilesAvx512 = kTilesHere;
}  // namespace starring
