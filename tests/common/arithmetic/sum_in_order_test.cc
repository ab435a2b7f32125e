#include "common/arithmetic/sum_in_order.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/arithmetic/wild_numbers.h"

namespace starring {
namespace {

std::vector<float> Plainly(const std::vector<std::vector<float>>& inputs) {
  std::vector<float> sum = inputs[0];
  for (size_t k = 1; k < inputs.size(); ++k) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + inputs[k][i];
  }
  return sum;
}

// `values` as bytes, `shift` bytes behind an aligned address.
struct Shifted {
  Shifted(const std::vector<float>& values, int shift) : bytes(values.size() * sizeof(float) + 64), at(shift) {
    if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof(float));
  }
  const std::byte* data() const { return bytes.data() + at; }
  std::vector<std::byte> bytes;
  int at;
};

TEST(SumInOrderTest, SameBitsAsThePlainLoopForAnyLengthAlignmentAndInstructionSet) {
  for (int input_count = 1; input_count <= 11; ++input_count) {
    for (const int64_t count : {0, 1, 2, 7, 16, 33, 1000, 2048, 5001}) {
      std::vector<std::vector<float>> inputs;
      std::vector<Shifted> shifted;
      std::vector<const std::byte*> pointers;
      for (int k = 0; k < input_count; ++k) {
        inputs.push_back(WildNumbers(count, 100 * input_count + k));
        shifted.emplace_back(inputs.back(), (k * 7) % 13);
      }
      for (const Shifted& input : shifted) pointers.push_back(input.data());
      const std::vector<float> expected = Plainly(inputs);
      for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
        std::vector<float> sum(count + 2, -77.0f);
        SumInOrder(pointers, std::span(sum).subspan(1, count), static_cast<InstructionSet>(set));
        EXPECT_TRUE(SameBits(std::span(sum).subspan(1, count), expected)) << input_count << " inputs, " << count;
        EXPECT_EQ(sum.front(), -77.0f);
        EXPECT_EQ(sum.back(), -77.0f);
      }
    }
  }
}

TEST(SumInOrderTest, TheOrderOfInputsShows) {
  const std::vector<std::vector<float>> inputs = {WildNumbers(1000, 1), WildNumbers(1000, 2), WildNumbers(1000, 3)};
  EXPECT_FALSE(SameBits(Plainly(inputs), Plainly({inputs[1], inputs[2], inputs[0]})));
}

TEST(SumInOrderTest, TheSumMayBeTheFirstInput) {
  for (int input_count = 1; input_count <= 9; ++input_count) {
    std::vector<std::vector<float>> inputs;
    for (int k = 0; k < input_count; ++k) inputs.push_back(WildNumbers(5001, k));
    const std::vector<float> expected = Plainly(inputs);
    std::vector<const std::byte*> pointers;
    for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
    SumInOrder(pointers, inputs[0]);
    EXPECT_TRUE(SameBits(inputs[0], expected)) << input_count;
  }
}

}  // namespace
}  // namespace starring
