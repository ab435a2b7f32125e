#include "common/transport/memory/host_memory.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/transport/memory/host_arrays.h"
#include "common/transport/message_pump.h"
#include "common/watch/stall_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int64_t kBytes = 10'001;  // no whole page

HostMemory::Options SomeBytes() {
  return {.bytes = [](int rank) { return rank == 1 ? 0 : kBytes + rank; }, .bucket_count = 4, .layout = "bytes"};
}

// Every process meets on a thread of its own.
std::vector<HostMemory::Outcome> MeetAll(const std::function<HostMemory::Options(int rank)>& options_of,
                                         int server_count = 0) {
  const int world_size = kRanks + server_count;
  InMemoryNetwork network(world_size, 3);
  std::vector<HostMemory::Outcome> outcomes(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = network.CreateTransport(rank);
      MessagePump pump(transport.get(), StallOptions(), server_count);
      auto outcome = HostMemory::Meet(pump, options_of(rank),
                                      {.what = "meeting", .deadline = absl::Seconds(20), .with_servers = true});
      CHECK_OK(outcome);
      outcomes[rank] = *std::move(outcome);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

TEST(HostMemoryTest, EveryProcessSeesEveryPiece) {
  for (const int server_count : {0, 2}) {
    const auto outcomes = MeetAll([](int) { return SomeBytes(); }, server_count);
    for (int rank = 0; rank < std::ssize(outcomes); ++rank) {
      ASSERT_NE(outcomes[rank].memory, nullptr) << outcomes[rank].refusal;
      HostMemory& memory = *outcomes[rank].memory;
      for (int other = 0; other < std::ssize(outcomes); ++other) {
        ASSERT_EQ(std::ssize(memory.piece(other)), other == 1 ? 0 : kBytes + other);
        ASSERT_EQ(memory.writable_piece(other).data(), memory.piece(other).data());
        if (other == 1) continue;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.piece(other).data()) % 4096, 0);
        memory.writable_piece(other)[kBytes - 1 - rank] = static_cast<std::byte>(10 * other + rank + 1);
      }
      memory.board()->Arrive(3);
    }
    for (const HostMemory::Outcome& outcome : outcomes) {
      for (int other : {0, 2}) {
        for (int rank = 0; rank < std::ssize(outcomes); ++rank) {
          EXPECT_EQ(outcome.memory->piece(other)[kBytes - 1 - rank], static_cast<std::byte>(10 * other + rank + 1));
        }
      }
      EXPECT_EQ(outcome.memory->board()->arrivals(3), std::ssize(outcomes));
      EXPECT_EQ(outcome.memory->board()->arrivals(0), 0);
    }
  }
}

// One process that cannot is enough, and all give its reason.
TEST(HostMemoryTest, ProcessesThatDifferShareNone) {
  struct Case {
    std::function<void(HostMemory::Options&)> change;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {[](HostMemory::Options& options) { options.boot_id = "another host's"; }, "rank 0 is on"},
      {[](HostMemory::Options& options) { options.boot_id = ""; }, "does not know its host"},
      {[](HostMemory::Options& options) { options.layout = "another"; }, "run different builds"},
      // Nothing is allocated then: a control group would end the job.
      {[](HostMemory::Options& options) { options.available_memory = [] { return 1000; }; }, "can get 1000"},
  };
  for (const Case& one : cases) {
    const auto outcomes = MeetAll(
        [&](int rank) {
          HostMemory::Options options = SomeBytes();
          if (rank == kRanks) one.change(options);
          return options;
        },
        /*server_count=*/1);
    for (const HostMemory::Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.memory, nullptr);
      EXPECT_THAT(outcome.refusal, AllOf(HasSubstr(one.reason), HasSubstr("server 0")));
    }
  }
}

TEST(HostArraysTest, WorkersAndServersSeeOneVectorOfParameters) {
  constexpr int64_t kElements = 5000;
  // Three workers share five leaves: some have several nodes.
  for (const int micro_batches : {0, 5}) {
    const HostArraysShape shape = {.element_count = kElements, .micro_batches = micro_batches, .worker_count = kRanks};
    const auto outcomes = MeetAll([&](int) { return HostArraysMemory(shape); }, 1);
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
