#include "worker/python/group_memory.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/watch/stall_report.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_loopback.h"

namespace starring {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kBytes = 10'001;

// The memories that all processes get, by rank.
std::vector<std::unique_ptr<GroupMemory>> Meet(int server_count, const std::function<std::string(int rank)>& host_of) {
  const int world_size = kRanks + server_count;
  auto transports = ConnectedRanks(world_size, {.server_count = server_count});
  std::vector<std::unique_ptr<GroupMemory>> memories(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank, transport = std::shared_ptr<Transport>(std::move(transports[rank]))] {
      MessagePump pump(transport.get(), StallOptions(), server_count);
      auto memory = GroupMemory::Meet(
          pump, {.first_owner = server_count > 0 ? kRanks : 0, .bytes = kBytes, .host_id = host_of(rank)},
          {.what = "joining", .deadline = absl::Seconds(30), .with_servers = true});
      ASSERT_TRUE(memory.ok()) << memory.status();
      memories[rank] = *std::move(memory);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return memories;
}

TEST(GroupMemoryTest, RanksMapTheMemoryOfEveryOwner) {
  for (const int server_count : {0, 2}) {
    const auto memories = Meet(server_count, [](int) { return "here"; });
    const int first_owner = server_count > 0 ? kRanks : 0;
    const int owner_count = server_count > 0 ? server_count : kRanks;
    for (int rank = 0; rank < std::ssize(memories); ++rank) {
      EXPECT_TRUE(memories[rank]->is_shared());
      EXPECT_EQ(std::ssize(memories[rank]->own()), rank >= first_owner ? kBytes : 0);
      EXPECT_EQ(std::ssize(memories[rank]->of_owners()), rank < kRanks ? owner_count : 0);
    }
    // A rank's bytes arrive where the owner reads.
    for (int owner = 0; owner < owner_count; ++owner) {
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto byte = static_cast<std::byte>(10 * owner + rank);
        memories[rank]->of_owners()[owner][kBytes - 1 - rank] = byte;
        EXPECT_EQ(memories[first_owner + owner]->own()[kBytes - 1 - rank], byte);
      }
    }
  }
}

TEST(GroupMemoryTest, OnSeveralHostsEveryOwnerHasItsOwn) {
  for (const std::string other : {"there", ""}) {
    const auto memories = Meet(1, [&](int rank) { return rank == 1 ? other : std::string("here"); });
    for (int rank = 0; rank < std::ssize(memories); ++rank) {
      EXPECT_FALSE(memories[rank]->is_shared());
      EXPECT_TRUE(memories[rank]->of_owners().empty());
      EXPECT_EQ(std::ssize(memories[rank]->own()), rank == kRanks ? kBytes : 0);
    }
  }
  // Nobody knows the host.
  EXPECT_FALSE(Meet(0, [](int) { return ""; })[0]->is_shared());
}

}  // namespace
}  // namespace starring
