#include "common/transport/memory/host_memory.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/memory/meeting_processes.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int64_t kBytes = 10'001;  // no whole page

HostMemory::Options SomeBytes() {
  return {.bytes = [](int rank) { return rank == 1 ? 0 : kBytes + rank; }, .bucket_count = 4, .layout = "bytes"};
}

TEST(HostMemoryTest, EveryProcessSeesEveryPiece) {
  for (const int server_count : {0, 2}) {
    const auto outcomes = MeetAll(kRanks + server_count, server_count, [](int) { return SomeBytes(); });
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
    const auto outcomes = MeetAll(kRanks + 1, 1, [&](int rank) {
      HostMemory::Options options = SomeBytes();
      if (rank == kRanks) one.change(options);
      return options;
    });
    for (const HostMemory::Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.memory, nullptr);
      EXPECT_THAT(outcome.refusal, AllOf(HasSubstr(one.reason), HasSubstr("server 0")));
    }
  }
}

}  // namespace
}  // namespace starring
