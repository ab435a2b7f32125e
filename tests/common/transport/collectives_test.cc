#include "common/transport/collectives.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"

namespace starring {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const CollectiveOptions kOptions = {.what = "a test", .deadline = absl::Seconds(20)};

class CollectivesTest : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }

  // Calls run(rank, pump) on a thread of each rank.
  void RunRanks(const std::function<void(int rank, MessagePump& pump)>& run) {
    InMemoryNetwork network(world_size(), 1);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size(); ++rank) {
      threads.emplace_back([&, rank, transport = network.CreateTransport(rank)] {
        MessagePump pump(transport.get(), {});
        run(rank, pump);
        // No rank may disconnect while another one still waits for a message that has left.
        CHECK_OK(Barrier(pump, kOptions));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesTest, testing::Values(1, 2, 4));

TEST_P(CollectivesTest, GathersAndSpreads) {
  RunRanks([&](int rank, MessagePump& pump) {
    const int mine = 10 * rank;
    std::vector<int> all(rank == 0 ? world_size() : 0);
    CHECK_OK(GatherToRoot(pump, ControlTag::kSum, std::as_bytes(std::span(&mine, 1)),
                          std::as_writable_bytes(std::span(all)), kOptions));
    for (size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r], 10 * static_cast<int>(r));
    int answer = rank == 0 ? 42 : 0;
    CHECK_OK(SendFromRoot(pump, ControlTag::kSumResult, std::as_writable_bytes(std::span(&answer, 1)), kOptions));
    EXPECT_EQ(answer, 42);
  });
}

TEST_P(CollectivesTest, TextsMayDifferInLength) {
  RunRanks([&](int rank, MessagePump& pump) {
    const auto texts = GatherTextToRoot(pump, std::string(static_cast<size_t>(rank), 'x'), kOptions);
    CHECK_OK(texts);
    EXPECT_EQ(texts->size(), rank == 0 ? world_size() : 0);
    for (size_t r = 0; r < texts->size(); ++r) EXPECT_EQ((*texts)[r], std::string(r, 'x'));
    for (const std::string& sent : {std::string(), std::string("no")}) {
      std::string verdict = rank == 0 ? sent : "mine";
      CHECK_OK(SendTextFromRoot(pump, verdict, kOptions));
      EXPECT_EQ(verdict, sent);
    }
  });
}

// More than two segments, the last one short.
TEST_P(CollectivesTest, BroadcastsInSegments) {
  const size_t count = 3 * kBroadcastSegmentBytes / sizeof(uint32_t) + 5;
  RunRanks([&](int rank, MessagePump& pump) {
    std::vector<uint32_t> data(count, 0);
    for (size_t i = 0; rank == 0 && i < count; ++i) data[i] = static_cast<uint32_t>(i * 2654435761u);
    CHECK_OK(BroadcastFromRoot(pump, std::as_writable_bytes(std::span(data)), kOptions));
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], static_cast<uint32_t>(i * 2654435761u)) << i;
  });
}

class TransferTest : public CollectivesTest {};

INSTANTIATE_TEST_SUITE_P(Ranks, TransferTest, testing::Values(2, 4));

TEST_P(TransferTest, CopiesFromOneRankToAnother) {
  const size_t count = 2 * kTransferSegmentBytes + 3;
  RunRanks([&](int rank, MessagePump& pump) {
    if (rank > 1) return;
    std::vector<std::byte> data(count, rank == 1 ? std::byte{9} : std::byte{0});
    CHECK_OK(Transfer(pump, {.from = 1, .to = 0}, data, kOptions));
    EXPECT_EQ(data, std::vector<std::byte>(count, std::byte{9}));
  });
}

// A transport may have to keep a segment until its receiver wants it.
TEST(Collectives, TwoSegmentsOfATransferAreOnTheirWay) {
  InMemoryNetwork network(2, 1);
  std::vector<std::vector<std::byte>> data(2, std::vector<std::byte>(5 * kTransferSegmentBytes));
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < 2; ++rank) transports.push_back(network.CreateTransport(rank));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      MessagePump pump(transports[rank].get(), {});
      CHECK_OK(Transfer(pump, {.from = 1, .to = 0}, data[rank], kOptions));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(network.sends_in_flight_max(), 2);
}

// Rank `liar` announces a text of 2^62 bytes. Returns the status of both ranks.
std::vector<absl::Status> WithALongText(int liar) {
  InMemoryNetwork network(2, 1);
  std::vector<std::unique_ptr<MessagePump>> pumps;  // end after the transports, which may write into their buffers
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < 2; ++rank) {
    transports.push_back(network.CreateTransport(rank));
    pumps.push_back(std::make_unique<MessagePump>(transports[rank].get(), StallOptions()));
  }
  uint64_t size = uint64_t{1} << 62;
  std::vector<absl::Status> status(2);
  std::string verdict;
  std::thread peer([&] {
    MessagePump& pump = *pumps[1];
    if (liar == 1) {
      status[1] = GatherToRoot(pump, ControlTag::kAgreementSize, std::as_bytes(std::span(&size, 1)), {}, kOptions);
      if (!status[1].ok()) return;  // rank 0 was faster
    }
    status[1] = SendTextFromRoot(pump, verdict, kOptions);
  });
  if (liar == 0) {
    MessagePump& pump = *pumps[0];
    status[0] = SendFromRoot(pump, ControlTag::kVerdictSize, std::as_writable_bytes(std::span(&size, 1)), kOptions);
    if (status[0].ok()) status[0] = Barrier(pump, kOptions);
  } else {
    status[0] = GatherTextToRoot(*pumps[0], "mine", kOptions).status();
  }
  peer.join();
  return status;
}

TEST(Collectives, ATextThatIsTooLongIsRefusedBeforeMemoryIsTaken) {
  for (const int liar : {0, 1}) {
    const std::vector<absl::Status> status = WithALongText(liar);
    const std::string said = "rank " + std::to_string(liar) + " announces a text of 4611686018427387904 bytes, " +
                             "at most " + std::to_string(kCollectiveTextBytesMax) + " are allowed";
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(status[rank].code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(status[rank].message()), HasSubstr(said)) << rank;
    }
  }
}

TEST(Collectives, AMissingRankIsNamedToAll) {
  InMemoryNetwork network(3, 2);
  std::vector<absl::Status> status(3);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < 3; ++rank) transports.push_back(network.CreateTransport(rank));
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {  // rank 2 does not come
    threads.emplace_back([&, rank] {
      MessagePump pump(transports[rank].get(), {});
      status[rank] = Barrier(pump, {.what = "meeting", .deadline = absl::Milliseconds(200)});
      transports[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(status[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status[0].message()), HasSubstr("meeting did not end within 200ms: rank 2 does not answer"));
  EXPECT_EQ(status[1].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status[1].message()), HasSubstr("rank 0 gave up: meeting did not end"));
}

}  // namespace
}  // namespace starring
