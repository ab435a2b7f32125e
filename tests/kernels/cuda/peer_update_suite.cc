#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/arithmetic/sum_in_order.h"
#include "gtest/gtest.h"
#include "tests/kernels/cuda_device_suite.h"
#include "tests/kernels/device_test_suite.h"

// The update of an owner that reads and writes the memory of all ranks: here one GPU has the memory of all.

namespace starring {
namespace {

// One rank's update on the CPU, run by run as the exchange in host memory makes it.
class CpuUpdate {
 public:
  CpuUpdate(const OptimizerConfig& config, const std::vector<float>& parameters)
      : config_(config), parameters_(parameters) {}

  void Run(const std::vector<std::vector<float>>& gradients, ReductionOrder reduction, ElementRange range,
           std::span<std::vector<float>> state) {
    const auto count = static_cast<int64_t>(parameters_.size());
    ForEachRun(range, count, reduction, [&](ElementRange run, int first_rank) {
      std::vector<const std::byte*> inputs;
      for (int i = 0; i < reduction.world_size; ++i) {
        const std::vector<float>& of = gradients[(first_rank + i) % reduction.world_size];
        inputs.push_back(reinterpret_cast<const std::byte*>(of.data() + run.begin));
      }
      std::vector<float> sum(static_cast<size_t>(run.size()));
      if (reduction.order == SumOrder::kTree) {
        SumAsTree(inputs, sum);
      } else {
        SumInOrder(inputs, sum);
      }
      std::vector<std::span<float>> states;
      for (std::vector<float>& one : state) {
        states.push_back(std::span(one).subspan(run.begin - range.begin, run.size()));
      }
      const std::span<float> piece = std::span(parameters_).subspan(run.begin, run.size());
      ApplyOptimizer(config_, {.learning_rate = 0.1f,
                               .update = 3,
                               .gradient = sum,
                               .parameters_in = piece,
                               .parameters_out = piece,
                               .state = states});
    });
  }

  const std::vector<float>& parameters() const { return parameters_; }

 private:
  const OptimizerConfig config_;
  std::vector<float> parameters_;
};

struct Case {
  OptimizerConfig optimizer;
  ReductionOrder reduction;
  int64_t count = 0;   // elements of the vector
  int64_t middle = 0;  // where the second owner's range begins
  int64_t end = 0;     // and where it ends: no rank updates what follows
};

// The rows of a ring's chunk, and a tail.
std::vector<ElementRange> RowsInOrder(int64_t begin, int64_t length, int64_t stride, int count, int64_t tail) {
  std::vector<ElementRange> rows;
  for (int i = 0; i < count; ++i) rows.push_back({begin + i * stride, begin + i * stride + length});
  const int64_t last = begin + count * stride;
  if (tail > 0) rows.push_back({last, last + tail});
  return rows;
}

std::vector<std::vector<ElementRange>> RowCases() {
  return {RowsInOrder(0, 1024, 3072, 5, 0), RowsInOrder(2048, 1024, 4096, 3, 517),  // a tail of another length
          RowsInOrder(4, 256, 512, 1, 7),                                           // one row and a tail
          RowsInOrder(1, 512, 1023, 4, 3),                                          // rows that no pack fits
          RowsInOrder(0, 2, 8, 9, 1),                                               // rows shorter than a pack
          RowsInOrder(17, 1031, 0, 1, 0)};                                          // one row of any length
}

// The first rank and the last one update a vector, each its range.
void ExpectTheBitsOfTheCpu(CudaDevice* device, const Case& test) {
  SCOPED_TRACE(testing::Message() << test.reduction.world_size << " ranks, "
                                  << (test.reduction.order == SumOrder::kTree ? "tree" : "chain") << ", " << test.count
                                  << " elements, from " << test.middle << ", optimizer "
                                  << static_cast<int>(test.optimizer.kind));
  const int ranks = test.reduction.world_size;
  std::vector<std::vector<float>> gradients;
  std::vector<std::unique_ptr<DeviceTensor>> on_gpu, parameters;
  const std::vector<float> before = RandomFloats(99, test.count);
  CudaPeerUpdate update = {
      .element_count = test.count, .reduction = test.reduction, .learning_rate = 0.1f, .update = 3};
  for (int rank = 0; rank < ranks; ++rank) {
    gradients.push_back(RandomFloats(static_cast<uint64_t>(rank), test.count));
    on_gpu.push_back(std::make_unique<DeviceTensor>(device, gradients.back()));
    // Only the owner's parameters are read.
    std::vector<float> start = before;
    if (rank > 0 && rank < ranks - 1) std::fill_n(start.begin(), test.end, 7.0f);
    parameters.push_back(std::make_unique<DeviceTensor>(device, start));
    update.gradients[rank] = on_gpu.back()->data();
    update.parameters[rank] = parameters.back()->data();
  }
  ASSERT_TRUE(device->Synchronize().ok());
  CpuUpdate want(test.optimizer, before);
  auto math = device->CreateVectorMath().value();
  for (const int owner : {0, ranks - 1}) {
    const ElementRange range = owner == 0 ? ElementRange{0, test.middle} : ElementRange{test.middle, test.end};
    std::vector<std::vector<float>> states;
    std::vector<std::unique_ptr<DeviceTensor>> states_on_gpu;
    update.rows = range;
    update.rank = owner;
    update.state.clear();
    for (int i = 0; i < StateVectorCount(test.optimizer); ++i) {
      std::vector<float> state = RandomFloats(50 + static_cast<uint64_t>(i), range.size());
      for (float& value : state) value = std::abs(value);  // of AdamW's squares
      states_on_gpu.push_back(std::make_unique<DeviceTensor>(device, state));
      update.state.emplace_back(states_on_gpu.back()->data(), static_cast<size_t>(range.size()));
      states.push_back(std::move(state));
    }
    ASSERT_TRUE(device->Synchronize().ok());
    want.Run(gradients, test.reduction, range, states);
    math->ApplyPeerUpdate(test.optimizer, update);
    ASSERT_TRUE(math->Synchronize().ok());
    for (size_t i = 0; i < states.size(); ++i) EXPECT_EQ(states_on_gpu[i]->Host(), states[i]);
  }
  for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(parameters[rank]->Host(), want.parameters()) << rank;
}

TEST_P(CudaDeviceTest, PeerUpdatesHaveTheBitsOfTheCpu) {
  for (int ranks = 2; ranks <= kPeerRanksMax; ++ranks) {
    const int64_t block = ReductionBlockElements(ranks);
    for (const SumOrder order : {SumOrder::kChain, SumOrder::kTree}) {
      const ReductionOrder reduction = {.order = order, .world_size = ranks};
      // Whole blocks and a short last one, cut inside a chunk, inside a pack, and inside the last block.
      const int64_t long_count = block + 4 * ranks + 3;
      ExpectTheBitsOfTheCpu(device(), {{.momentum = 0.9}, reduction, long_count, block / 2 + 4, long_count});
      ExpectTheBitsOfTheCpu(device(), {{.momentum = 0.9, .nesterov = true}, reduction, 1031, 515, 1029});
      ExpectTheBitsOfTheCpu(device(), {{.weight_decay = 0.01}, reduction, 2 * ranks + 1, 4, 4});
      ExpectTheBitsOfTheCpu(device(), {{.kind = OptimizerKind::kAdamW}, reduction, 4099, 2048, 4098});
    }
  }
}

TEST_P(CudaDeviceTest, AHopCopiesOrAddsItsRowsAlone) {
  for (const std::vector<ElementRange>& ranges : RowCases()) {
    const ElementRows rows = ElementRows::Of(ranges);
    const int64_t count = rows.end() + 5;
    const std::vector<float> left = RandomFloats(1, count), own = RandomFloats(2, count), before(count, 7.0f);
    std::vector<float> copy = before, sum = before;
    for (const ElementRange& range : ranges) {
      for (int64_t e = range.begin; e < range.end; ++e) copy[e] = left[e], sum[e] = left[e] + own[e];
    }
    DeviceTensor left_on_gpu(device(), left), own_on_gpu(device(), own);
    DeviceTensor copied(device(), before), added(device(), before);
    ASSERT_TRUE(device()->Synchronize().ok());
    auto math = device()->CreateVectorMath().value();
    math->RunPeerHop({.rows = rows, .left = left_on_gpu.data(), .out = copied.data()});
    math->RunPeerHop({.rows = rows, .left = left_on_gpu.data(), .own = own_on_gpu.data(), .out = added.data()});
    ASSERT_TRUE(math->Synchronize().ok());
    EXPECT_EQ(copied.Host(), copy) << rows.begin;
    EXPECT_EQ(added.Host(), sum) << rows.begin;
  }
}

// As a ring updates: two gradients, of which one is a partial sum, and the parameters of one rank.
TEST_P(CudaDeviceTest, AnUpdateOfRowsHasTheBitsOfTheCpu) {
  for (const OptimizerConfig& optimizer : {OptimizerConfig{.momentum = 0.9}, {.kind = OptimizerKind::kAdamW}}) {
    for (const std::vector<ElementRange>& ranges : RowCases()) {
      const ElementRows rows = ElementRows::Of(ranges);
      const int64_t count = rows.end() + 5;
      const std::vector<std::vector<float>> gradients = {RandomFloats(1, count), RandomFloats(2, count)};
      const std::vector<float> before = RandomFloats(3, count);
      DeviceTensor left(device(), gradients[0]), own(device(), gradients[1]);
      DeviceTensor parameters(device(), before);
      CudaPeerUpdate update = {.rows = rows,
                               .element_count = count,
                               .reduction = {.order = SumOrder::kTree, .world_size = 2},
                               .gradients = {left.data(), own.data()},
                               .parameters = {parameters.data(), parameters.data()},
                               .learning_rate = 0.1f,
                               .update = 3};
      std::vector<std::vector<float>> states;
      std::vector<std::unique_ptr<DeviceTensor>> states_on_gpu;
      for (int i = 0; i < StateVectorCount(optimizer); ++i) {
        std::vector<float> state = RandomFloats(50 + static_cast<uint64_t>(i), rows.size());
        for (float& value : state) value = std::abs(value);
        states_on_gpu.push_back(std::make_unique<DeviceTensor>(device(), state));
        update.state.emplace_back(states_on_gpu.back()->data(), static_cast<size_t>(rows.size()));
        states.push_back(std::move(state));
      }
      ASSERT_TRUE(device()->Synchronize().ok());
      auto math = device()->CreateVectorMath().value();
      math->ApplyPeerUpdate(optimizer, update);
      ASSERT_TRUE(math->Synchronize().ok());
      CpuUpdate want(optimizer, before);
      int64_t at = 0;  // in the states
      for (const ElementRange& range : ranges) {
        std::vector<std::vector<float>> of_range;
        for (const std::vector<float>& state : states) {
          of_range.emplace_back(state.begin() + at, state.begin() + at + range.size());
        }
        want.Run(gradients, update.reduction, range, of_range);
        for (size_t i = 0; i < states.size(); ++i) std::ranges::copy(of_range[i], states[i].begin() + at);
        at += range.size();
      }
      EXPECT_EQ(parameters.Host(), want.parameters()) << rows.begin;
      for (size_t i = 0; i < states.size(); ++i) EXPECT_EQ(states_on_gpu[i]->Host(), states[i]) << rows.begin;
    }
  }
}

}  // namespace
}  // namespace starring
