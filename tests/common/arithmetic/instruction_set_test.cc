#include "common/arithmetic/instruction_set.h"

#include <array>

#include "gtest/gtest.h"

namespace starring {
namespace {

struct SumArgs {
  const float* values;
  int count;
  float* sum;
};

[[gnu::always_inline]] inline void SumLoop(const SumArgs& args) {
  float sum = 0;
  // With contraction this would be one rounding instead of two where the instruction set has a fused operation.
  for (int i = 0; i < args.count; ++i) sum = sum + args.values[i] * args.values[i];
  *args.sum = sum;
}

STARRING_DEFINE_CLONES(kSumClones, SumLoop, SumArgs);

TEST(InstructionSetTest, EveryCloneThatThisMachineRunsGivesTheSameBits) {
  std::array<float, 1000> values;
  for (int i = 0; i < 1000; ++i) values[i] = 1.0f / static_cast<float>(i + 3);
  float expected = 0;
  kSumClones[static_cast<int>(InstructionSet::kBaseline)]({values.data(), 1000, &expected});
  EXPECT_GT(expected, 0);
  for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
    float sum = 0;
    kSumClones[set]({values.data(), 1000, &sum});
    EXPECT_EQ(sum, expected) << "instruction set " << set;
  }
}

TEST(InstructionSetTest, EverySetHasAClone) {
  EXPECT_LT(static_cast<int>(BestInstructionSet()), kInstructionSetCount);
  EXPECT_EQ(static_cast<int>(InstructionSet::kAvx512), kInstructionSetCount - 1);
  for (auto* clone : kSumClones) EXPECT_NE(clone, nullptr);
}

}  // namespace
}  // namespace starring
