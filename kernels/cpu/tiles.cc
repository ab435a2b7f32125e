#include "kernels/cpu/tiles.h"

namespace starring {

const Tiles& TilesOf(InstructionSet set) {
  switch (set) {
    case InstructionSet::kAvx512:
      return kTilesAvx512;
    case InstructionSet::kAvx2:
      return kTilesAvx2;
    default:
      return kTilesBaseline;
  }
}

}  // namespace starring
