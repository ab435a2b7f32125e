#include "common/transport/memory/host_arrays.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/transport/memory/host_memory.h"
#include "gtest/gtest.h"
#include "tests/common/transport/memory/meeting_processes.h"

namespace starring {
namespace {

constexpr int kRanks = 3;

TEST(HostArraysTest, WorkersAndServersSeeOneVectorOfParameters) {
  constexpr int64_t kElements = 5000;
  // Three workers share five leaves: some have several nodes.
  for (const int micro_batches : {0, 5}) {
    const HostArraysShape shape = {.element_count = kElements, .micro_batches = micro_batches, .worker_count = kRanks};
    const auto outcomes = MeetAll(kRanks + 1, 1, [&](int) { return HostArraysMemory(shape); });
    std::vector<HostArrays> all;
    for (int rank = 0; rank <= kRanks; ++rank) {
      ASSERT_NE(outcomes[rank].memory, nullptr) << outcomes[rank].refusal;
      all.push_back(DivideHostMemory(shape, rank, *outcomes[rank].memory));
    }
    ASSERT_GE(std::ssize(all[0].gradients), kRanks);
    size_t own = 0;
    float value = 0;
    for (int rank = 0; rank <= kRanks; ++rank) {
      own += all[rank].own_gradients.size();
      EXPECT_EQ(all[rank].own_gradients.empty(), rank == kRanks);
      for (const std::span<float> gradient : all[rank].own_gradients) {
        ASSERT_EQ(std::ssize(gradient), kElements);
        gradient.back() = ++value;
      }
      all[rank].parameters[rank] = static_cast<float>(10 + rank);
    }
    EXPECT_EQ(own, all[0].gradients.size());
    for (const HostArrays& arrays : all) {
      ASSERT_EQ(arrays.gradients.size(), all[0].gradients.size());
      float sum = 0;
      for (const std::span<const float> gradient : arrays.gradients) sum += gradient.back();
      EXPECT_EQ(sum, value * (value + 1) / 2);
      for (int rank = 0; rank <= kRanks; ++rank) EXPECT_EQ(arrays.parameters[rank], static_cast<float>(10 + rank));
    }
  }
}

}  // namespace
}  // namespace starring
