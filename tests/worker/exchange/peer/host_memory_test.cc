#include "worker/exchange/peer/host_memory.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/transport/message_pump.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"

namespace starring {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;

// Every rank meets on a thread of its own. The pumps outlive the outcomes' use.
std::vector<HostMemory::Outcome> MeetAll(const std::function<HostMemory::Options(int rank)>& options_of) {
  InMemoryNetwork network(kRanks, 3);
  std::vector<HostMemory::Outcome> outcomes(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = network.CreateTransport(rank);
      MessagePump pump(transport.get(), {});
      auto outcome = HostMemory::Meet(pump, options_of(rank), {.what = "meeting", .deadline = absl::Seconds(20)});
      CHECK_OK(outcome);
      outcomes[rank] = *std::move(outcome);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

TEST(HostMemory, AllRanksSeeOneMemory) {
  constexpr int64_t kElements = 5000;  // no whole page
  const auto outcomes = MeetAll([](int) { return HostMemory::Options{.element_count = kElements, .bucket_count = 4}; });
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_NE(outcomes[rank].memory, nullptr) << outcomes[rank].refusal;
    const HostArrays& arrays = outcomes[rank].memory->arrays();
    ASSERT_EQ(arrays.gradients.size(), kRanks);
    ASSERT_EQ(arrays.own_gradients.size(), 1u);
    ASSERT_EQ(arrays.own_gradients[0].size(), kElements);
    ASSERT_EQ(arrays.parameters.size(), kElements);
    arrays.own_gradients[0].back() = static_cast<float>(rank + 1);
    arrays.parameters[rank] = static_cast<float>(10 + rank);
    outcomes[rank].memory->board()->Arrive(3);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const HostArrays& arrays = outcomes[rank].memory->arrays();
    for (int other = 0; other < kRanks; ++other) {
      EXPECT_EQ(arrays.gradients[other].back(), static_cast<float>(other + 1));
      EXPECT_EQ(arrays.parameters[other], static_cast<float>(10 + other));
    }
    EXPECT_EQ(outcomes[rank].memory->board()->arrivals(3), kRanks);
    EXPECT_EQ(outcomes[rank].memory->board()->arrivals(0), 0);
  }
}

// One rank that cannot is enough, and all ranks give its reason.
TEST(HostMemory, RanksOfTwoHostsShareNone) {
  const auto outcomes = MeetAll([](int rank) {
    HostMemory::Options options{.element_count = 64, .bucket_count = 1};
    if (rank == 2) options.boot_id = "another host's";
    return options;
  });
  for (const HostMemory::Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.memory, nullptr);
    EXPECT_THAT(outcome.refusal, HasSubstr("rank 0 is on"));
    EXPECT_THAT(outcome.refusal, HasSubstr("rank 2 on"));
  }
}

// Nothing is allocated then: a control group would end the job.
TEST(HostMemory, RanksWithTooLittleMemoryShareNone) {
  const auto outcomes = MeetAll([](int rank) {
    HostMemory::Options options{.element_count = 1024, .bucket_count = 1};
    options.available_memory = [rank]() -> absl::StatusOr<int64_t> { return rank == 1 ? 1000 : int64_t{1} << 62; };
    return options;
  });
  for (const HostMemory::Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.memory, nullptr);
    EXPECT_THAT(outcome.refusal, HasSubstr("bytes, and rank 1 can get 1000"));
  }
}

}  // namespace
}  // namespace starring
