#include <xmmintrin.h>

#include "kernels/cpu/tiles/tiles.h"

// No attribute is needed: every x86-64 CPU has SSE2.
#define STARRING_TARGET

namespace starring {
namespace {

using Vector = __m128;
using Mask = int64_t;  // how many lanes
constexpr int kLanes = 4;
constexpr int kVectorsMax = 3;
// A full tile has 12 sums, the vectors of one row of B and one factor: with three vectors, all of the 16 registers.
constexpr int RowsMax(int vectors) { return vectors == 1 ? 12 : vectors == 2 ? 6 : 4; }

inline Mask LanesBelow(int64_t count) { return count < kLanes ? count : kLanes; }
inline Vector Load(const float* p) { return _mm_loadu_ps(p); }
inline Vector Load(Mask lanes, const float* p) {
  // There are no masked loads. Elements are read one by one, so that nothing beyond the array is read. At least one
  // lane exists.
  if (lanes == kLanes) return Load(p);
  return _mm_setr_ps(p[0], lanes > 1 ? p[1] : 0, lanes > 2 ? p[2] : 0, 0);
}
inline void Store(Vector v, float* p) { _mm_storeu_ps(p, v); }
inline void Store(Mask lanes, Vector v, float* p) {
  if (lanes == kLanes) return Store(v, p);
  for (Mask l = 0; l < lanes; ++l) p[l] = v[l];
}
inline Vector Broadcast(float x) { return _mm_set1_ps(x); }
// This rounds twice, where AVX2 and AVX-512 round once. So tiles have other bits here, while the clones of plain loops
// have the same on every set.
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return c + a * b; }
inline Vector Max(Vector a, Vector b) { return _mm_max_ps(a, b); }

}  // namespace
}  // namespace starring

#include "kernels/cpu/tiles/tile_loops.h"

namespace starring {
const Tiles kTilesBaseline = kTilesHere;
}  // namespace starring
