#include "common/arithmetic/sum_in_order.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/arithmetic/reduction_order.h"
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

// `values` as bytes, `shift` bytes after an aligned address.
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

// Proves that WildNumbers tell orders apart. If they did not, the other tests would pass with any order.
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

// As the definition says, by recursion over whole arrays.
std::vector<float> TreeSum(const std::vector<std::vector<float>>& inputs, size_t begin, size_t end) {
  if (end - begin == 1) return inputs[begin];
  size_t left = 1;
  while (2 * left < end - begin) left *= 2;
  std::vector<float> sum = TreeSum(inputs, begin, begin + left);
  const std::vector<float> right = TreeSum(inputs, begin + left, end);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + right[i];
  return sum;
}

TEST(SumAsTreeTest, SameBitsAsTheDefinitionForAnyNumberOfInputsLengthAlignmentAndInstructionSet) {
  std::vector<int> input_counts = {63, 64, 65, 100, 1023, 1024};
  for (int input_count = 1; input_count <= 33; ++input_count) input_counts.push_back(input_count);
  for (const int input_count : input_counts) {
    // Around the length of a block, and of a vector of 16.
    for (const int64_t count : {0, 1, 15, 511, 512, 513, 1100}) {
      if (input_count > 100 && count > 513) continue;
      std::vector<std::vector<float>> inputs;
      std::vector<Shifted> shifted;
      std::vector<const std::byte*> pointers;
      for (int k = 0; k < input_count; ++k) {
        inputs.push_back(WildNumbers(count, 100 * input_count + k));
        shifted.emplace_back(inputs.back(), (k * 7) % 13);
      }
      for (const Shifted& input : shifted) pointers.push_back(input.data());
      const std::vector<float> expected = TreeSum(inputs, 0, inputs.size());
      for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
        std::vector<float> sum(count + 2, -77.0f);
        SumAsTree(pointers, std::span(sum).subspan(1, count), static_cast<InstructionSet>(set));
        EXPECT_TRUE(SameBits(std::span(sum).subspan(1, count), expected)) << input_count << " inputs, " << count;
        EXPECT_EQ(sum.front(), -77.0f);
        EXPECT_EQ(sum.back(), -77.0f);
      }
    }
  }
}

TEST(SumAsTreeTest, IsTheChainForThreeInputsAndNotForFour) {
  std::vector<std::vector<float>> inputs = {WildNumbers(1000, 1), WildNumbers(1000, 2), WildNumbers(1000, 3)};
  EXPECT_TRUE(SameBits(TreeSum(inputs, 0, 3), Plainly(inputs)));
  inputs.push_back(WildNumbers(1000, 4));
  EXPECT_FALSE(SameBits(TreeSum(inputs, 0, 4), Plainly(inputs)));
}

// Inputs that are sums already: nodes of the tree.
TEST(SumAsTreeTest, NodesAddUpToTheBitsOfTheirLeaves) {
  for (const auto& node_leaves : std::vector<std::vector<int>>{{1, 1, 2},
                                                               {4, 2, 1},
                                                               {2, 1, 1, 4},
                                                               {4, 3},
                                                               {2, 2, 2},
                                                               {8, 4, 2, 1},
                                                               {1, 1, 2, 4, 8, 16, 2, 1},
                                                               {4, 4, 4, 4},
                                                               {2, 2, 1, 1, 2, 3},
                                                               {16, 8, 8, 4, 1, 1, 2, 7}}) {
    std::vector<std::vector<float>> leaves, nodes;
    std::vector<const std::byte*> pointers;
    for (const int count : node_leaves) {
      const size_t begin = leaves.size();
      for (int i = 0; i < count; ++i) leaves.push_back(WildNumbers(1100, static_cast<uint32_t>(leaves.size())));
      nodes.push_back(TreeSum(leaves, begin, leaves.size()));
    }
    for (const auto& node : nodes) pointers.push_back(reinterpret_cast<const std::byte*>(node.data()));
    for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
      std::vector<float> sum(1100);
      SumAsTree(pointers, sum, static_cast<InstructionSet>(set), node_leaves);
      EXPECT_TRUE(SameBits(sum, TreeSum(leaves, 0, leaves.size()))) << node_leaves.size() << " nodes";
    }
  }
}

TEST(SumAsTreeTest, TheSumMayBeTheFirstInput) {
  for (int input_count = 1; input_count <= 17; ++input_count) {
    std::vector<std::vector<float>> inputs;
    for (int k = 0; k < input_count; ++k) inputs.push_back(WildNumbers(1100, k));
    const std::vector<float> expected = TreeSum(inputs, 0, inputs.size());
    std::vector<const std::byte*> pointers;
    for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
    SumAsTree(pointers, inputs[0]);
    EXPECT_TRUE(SameBits(inputs[0], expected)) << input_count;
  }
}

std::vector<float> SumFrom(const std::vector<std::vector<float>>& inputs, int first_rank) {
  const int count = static_cast<int>(inputs.size());
  std::vector<float> sum = inputs[first_rank];
  for (int k = 1; k < count; ++k) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + inputs[(first_rank + k) % count][i];
  }
  return sum;
}

TEST(PieceSumTest, SameBitsForAnyCutAndAlignment) {
  const int64_t count = 777;
  // In bytes: a piece may end inside a float, or be empty.
  const std::vector<std::vector<size_t>> cuts = {{1u << 20}, {4}, {1}, {3, 5}, {7, 0, 1, 64, 2}, {1000}, {1021, 3}};
  for (int world_size = 1; world_size <= 5; ++world_size) {
    std::vector<std::vector<float>> inputs;
    for (int rank = 0; rank < world_size; ++rank) inputs.push_back(WildNumbers(count, rank));
    for (int first_rank = 0; first_rank < world_size; ++first_rank) {
      const std::vector<float> expected = SumFrom(inputs, first_rank);
      for (size_t c = 0; c < cuts.size(); ++c) {
        std::vector<CutMessage> messages;  // every worker's message is cut in another way
        for (int rank = 0; rank < world_size; ++rank) {
          messages.emplace_back(inputs[rank], cuts[(c + rank) % cuts.size()], (c + rank) % 5);
        }
        PieceSum sum({.world_size = world_size});
        for (int rank = 0; rank < world_size; ++rank) sum.SetInput(rank, messages[rank].pieces());
        std::vector<float> result(count);
        // The result in ranges of irregular lengths, because runs of the reduction order end anywhere.
        for (int64_t at = 0, length = 1; at < count; at += length, length = length * 3 % 101 + 1) {
          length = std::min(length, count - at);
          sum.Next(first_rank, std::span(result).subspan(at, length));
        }
        EXPECT_TRUE(SameBits(result, expected)) << world_size << " inputs from " << first_rank << ", cut " << c;
      }
    }
  }
}

TEST(PieceSumTest, AddsAsATreeForAnyCut) {
  const int64_t count = 777;
  for (const int world_size : {1, 2, 3, 4, 5, 8, 13}) {
    std::vector<std::vector<float>> inputs;
    std::vector<CutMessage> messages;
    for (int rank = 0; rank < world_size; ++rank) inputs.push_back(WildNumbers(count, rank));
    for (int rank = 0; rank < world_size; ++rank) {
      messages.emplace_back(inputs[rank], rank % 2 == 0 ? std::vector<size_t>{1021, 3} : std::vector<size_t>{7, 0, 64},
                            rank % 5);
    }
    PieceSum sum({.order = SumOrder::kTree, .world_size = world_size});
    for (int rank = 0; rank < world_size; ++rank) sum.SetInput(rank, messages[rank].pieces());
    std::vector<float> result(count);
    sum.Next(0, result);
    EXPECT_TRUE(SameBits(result, TreeSum(inputs, 0, inputs.size()))) << world_size;
  }
}

TEST(PieceSumTest, IsUsedAgainForTheNextMessages) {
  PieceSum sum({.world_size = 2});
  for (int round = 0; round < 3; ++round) {
    const std::vector<std::vector<float>> inputs = {WildNumbers(50, 2 * round), WildNumbers(50, 2 * round + 1)};
    const CutMessage a(inputs[0], {6}, 1), b(inputs[1], {10}, 2);
    sum.SetInput(0, a.pieces());
    sum.SetInput(1, b.pieces());
    std::vector<float> result(50);
    sum.Next(1, result);
    EXPECT_EQ(result, SumFrom(inputs, 1));
  }
}

// As the ring adds: chunk c of a block starts at rank c + 1 and travels; each rank adds its own chunk to the received
// one.
TEST(PieceSumTest, SameBitsAsTheAdditionsOfARing) {
  for (const int world_size : {1, 2, 3, 4, 5, 8}) {
    const int64_t block = ReductionBlockElements(world_size);
    for (const int64_t count : {int64_t{1}, int64_t{3}, int64_t{17}, block - 1, block, block + 1, 2 * block + 4099}) {
      std::vector<std::vector<float>> inputs;
      for (int rank = 0; rank < world_size; ++rank) inputs.push_back(WildNumbers(count, rank));

      std::vector<float> ring(count);
      for (int64_t begin = 0; begin < count; begin += block) {
        for (int chunk = 0; chunk < world_size; ++chunk) {
          const ElementRange range = RingChunk({begin, std::min(begin + block, count)}, chunk, world_size);
          std::vector<float> travelling(inputs[(chunk + 1) % world_size].begin() + range.begin,
                                        inputs[(chunk + 1) % world_size].begin() + range.end);
          for (int hop = 2; hop <= world_size; ++hop) {
            const float* own = inputs[(chunk + hop) % world_size].data() + range.begin;
            for (size_t i = 0; i < travelling.size(); ++i) travelling[i] = own[i] + travelling[i];
          }
          std::copy(travelling.begin(), travelling.end(), ring.begin() + range.begin);
        }
      }

      std::vector<CutMessage> messages;
      PieceSum sum({.world_size = world_size});
      for (int rank = 0; rank < world_size; ++rank) messages.emplace_back(inputs[rank], std::vector<size_t>{1001}, 1);
      for (int rank = 0; rank < world_size; ++rank) sum.SetInput(rank, messages[rank].pieces());
      std::vector<float> star(count);
      ForEachRun({0, count}, count, {.world_size = world_size}, [&](ElementRange run, int first_rank) {
        sum.Next(first_rank, std::span(star).subspan(run.begin, run.size()));
      });
      EXPECT_TRUE(SameBits(star, ring)) << world_size << ", " << count;
    }
  }
}

TEST(PieceSumDeathTest, AnInputThatEndsEarlyIsAProgrammersError) {
  const std::vector<float> ten(10);
  const CutMessage whole(ten, {9}, 0);
  PieceSum sum({.world_size = 1});
  sum.SetInput(0, whole.pieces());
  std::vector<float> eleven(11);
  EXPECT_DEATH(sum.Next(0, eleven), "input 0 ends 1 elements early");
}

}  // namespace
}  // namespace starring
