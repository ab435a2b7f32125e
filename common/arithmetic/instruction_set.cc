#include "common/arithmetic/instruction_set.h"

namespace starring {

InstructionSet BestInstructionSet() {
#if defined(__x86_64__)
  // The answers include the operating system's part: a kernel that does not save the wide registers hides a set. The
  // clones use nothing of AVX-512 beyond its foundation; the AVX2 tiles of kernels/cpu also use FMA.
  if (__builtin_cpu_supports("avx512f")) return InstructionSet::kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

}  // namespace starring
