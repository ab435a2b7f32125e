#include <immintrin.h>

#include "kernels/cpu/tiles/tiles.h"

// BestInstructionSet names AVX2 only if the CPU has FMA too.
#define STARRING_TARGET __attribute__((target("avx2,fma")))

namespace starring {
namespace {

using Vector = __m256;
// AVX2 has no mask registers. Loads take a vector whose lanes are all ones or zeros; stores need the count.
struct Mask {
  __m256i lanes;
  int count;
};
constexpr int kLanes = 8;
constexpr int kVectorsMax = 2;
// A full tile has 12 sums, the vectors of one row of B and one factor: 14 or 15 of the 16 registers.
constexpr int RowsMax(int vectors) { return vectors == 1 ? 12 : 6; }

STARRING_TARGET inline Mask LanesBelow(int64_t count) {
  const int lanes = static_cast<int>(count < kLanes ? count : kLanes);
  return {.lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
          .count = lanes};
}
STARRING_TARGET inline Vector Load(const float* p) { return _mm256_loadu_ps(p); }
// Lanes that do not exist load as 0, which MaskAndSumNarrow relies on, and are not read: a tile at the end of an array
// touches nothing beyond it.
STARRING_TARGET inline Vector Load(Mask mask, const float* p) { return _mm256_maskload_ps(p, mask.lanes); }
STARRING_TARGET inline void Store(Vector v, float* p) { _mm256_storeu_ps(p, v); }
// Piece by piece: AMD's masked stores take tens of cycles.
STARRING_TARGET inline void Store(Mask mask, Vector v, float* p) {
  if (mask.count == kLanes) return Store(v, p);
  __m128 rest = _mm256_castps256_ps128(v);
  if ((mask.count & 4) != 0) {
    _mm_storeu_ps(p, rest);
    rest = _mm256_extractf128_ps(v, 1);
    p += 4;
  }
  if ((mask.count & 2) != 0) {
    _mm_storel_pi(reinterpret_cast<__m64*>(p), rest);
    rest = _mm_movehl_ps(rest, rest);
    p += 2;
  }
  if ((mask.count & 1) != 0) _mm_store_ss(p, rest);
}
STARRING_TARGET inline Vector Broadcast(float x) { return _mm256_set1_ps(x); }
STARRING_TARGET inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
STARRING_TARGET inline Vector Max(Vector a, Vector b) { return _mm256_max_ps(a, b); }

}  // namespace
}  // namespace starring

#include "kernels/cpu/tiles/tile_loops.h"

namespace starring {
const Tiles kTilesAvx2 = kTilesHere;
}  // namespace starring
