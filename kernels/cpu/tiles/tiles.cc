#include "kernels/cpu/tiles/tiles.h"

namespace starring {

const Tiles& TilesOf(InstructionSet set) {
  // An operation asks once, when it is created. The tables are of three sources, because a source can define
  // tile_loops.h for one instruction set only.
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
