#include "worker/step/node_sum.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/common/arithmetic/wild_numbers.h"

namespace starring {
namespace {

constexpr int64_t kElements = 5000;  // three blocks, the last one shorter
constexpr size_t kValues = 3;

struct Leaf {
  std::vector<float> gradient;
  std::vector<double> values;
};

Leaf MakeLeaf(int number) {
  Leaf leaf = {.gradient = WildNumbers(kElements, static_cast<uint32_t>(number))};
  for (size_t i = 0; i < kValues; ++i) leaf.values.push_back(1e3 * leaf.gradient[i] + leaf.gradient[i + 9]);
  return leaf;
}

// As the definition says, by recursion.
Leaf TreeSum(const std::vector<Leaf>& leaves, LeafRange range) {
  if (range.size() == 1) return leaves[static_cast<size_t>(range.begin)];
  int left_size = 1;
  while (2 * left_size < range.size()) left_size *= 2;
  Leaf sum = TreeSum(leaves, {range.begin, range.begin + left_size});
  const Leaf right = TreeSum(leaves, {range.begin + left_size, range.end});
  for (size_t i = 0; i < sum.gradient.size(); ++i) sum.gradient[i] += right.gradient[i];
  for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += right.values[i];
  return sum;
}

class NodeSumTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = CreateCpuDevice({.threads = 1}).value();
};

TEST_F(NodeSumTest, HasTheBitsOfTheTreeForEveryNode) {
  std::vector<Leaf> leaves;
  for (int i = 0; i < 17; ++i) leaves.push_back(MakeLeaf(i));
  for (int size = 1; size <= 17; ++size) {
    NodeSum sum =
        NodeSum::Create(
            {.share = {{0, size}}, .element_count = kElements, .value_count = kValues, .device = device_.get()})
            .value();
    // Twice: nothing is left over from the node before.
    for (int round = 0; round < 2; ++round) {
      std::vector<float> node(kElements, -7.0f);
      for (int i = 0; i < size; ++i) {
        const std::span<float> place = sum.BeginLeaf(i, size, node);
        const Leaf& leaf = leaves[static_cast<size_t>(i)];
        // As backward does it: from the vector's end, layer by layer.
        for (const ElementRange layer : {ElementRange{3000, kElements}, ElementRange{7, 3000}, ElementRange{0, 7}}) {
          std::copy(leaf.gradient.begin() + layer.begin, leaf.gradient.begin() + layer.end,
                    place.begin() + layer.begin);
          sum.AddGradient(layer);
        }
        std::ranges::copy(leaf.values, sum.values().begin());
        EXPECT_EQ(sum.is_last_leaf(), i + 1 == size);
        sum.AddValues();
      }
      const Leaf expected = TreeSum(leaves, {0, size});
      EXPECT_TRUE(SameBits(node, expected.gradient)) << size;
      EXPECT_TRUE(std::ranges::equal(sum.values(), expected.values)) << size;
    }
  }
}

TEST_F(NodeSumTest, ANodeOfOneLeafIsComputedInPlace) {
  NodeSum sum =
      NodeSum::Create({.share = {{4, 5}}, .element_count = 8, .value_count = 1, .device = device_.get()}).value();
  std::vector<float> node(8);
  EXPECT_EQ(sum.BeginLeaf(0, 1, node).data(), node.data());
}

TEST_F(NodeSumTest, NodesOfAllWorkersAddUpToTheSameBits) {
  constexpr int kLeaves = 13;
  std::vector<Leaf> leaves;
  for (int i = 0; i < kLeaves; ++i) leaves.push_back(MakeLeaf(100 + i));
  const std::vector<double> expected = TreeSum(leaves, {0, kLeaves}).values;
  for (int workers = 1; workers <= kLeaves; ++workers) {
    const std::vector<Contributor> contributors = ContributorsOf(DealLeavesEvenly(kLeaves, workers));
    std::vector<double> values;
    for (const Contributor& one : contributors) {
      const std::vector<double> node = TreeSum(leaves, one.leaves).values;
      values.insert(values.end(), node.begin(), node.end());
    }
    EXPECT_EQ(SumOfNodes(contributors, kLeaves, values), expected) << workers;
  }
}

}  // namespace
}  // namespace starring
