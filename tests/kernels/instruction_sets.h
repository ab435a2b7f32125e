// The instruction sets that a test of the CPU device can run here.
#ifndef STARRING_TESTS_KERNELS_INSTRUCTION_SETS_H_
#define STARRING_TESTS_KERNELS_INSTRUCTION_SETS_H_

#include <iostream>
#include <vector>

#include "common/arithmetic/instruction_set.h"

namespace starring {

inline const char* NameOf(InstructionSet set) {
  constexpr const char* kNames[kInstructionSetCount] = {"Baseline", "Avx2", "Avx512"};
  return kNames[static_cast<int>(set)];
}

// Prints to the error stream which instruction sets this CPU lacks.
inline std::vector<InstructionSet> TestedInstructionSets() {
  std::vector<InstructionSet> sets;
  for (int i = 0; i < kInstructionSetCount; ++i) {
    const auto set = static_cast<InstructionSet>(i);
    if (set <= BestInstructionSet()) {
      sets.push_back(set);
    } else {
      std::cerr << "SKIPPED: this CPU has no " << NameOf(set) << ", its code is not tested\n";
    }
  }
  return sets;
}

}  // namespace starring

#endif  // STARRING_TESTS_KERNELS_INSTRUCTION_SETS_H_
