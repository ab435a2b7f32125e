#include "server/check_board.h"

#include <gtest/gtest.h>

#include <string>

#include "common/limits.h"

namespace starring {
namespace {

constexpr auto kLife = CheckBoard::kNoteLife;
const CheckBoard::Clock::time_point kStart{};

TEST(CheckBoardTest, KeepsNotesOfEachWorkerAndStage) {
  CheckBoard board;
  ASSERT_TRUE(board.Greet(3, 77, kStart).ok());
  ASSERT_TRUE(board.Put(3, 1, "card").ok());
  ASSERT_TRUE(board.Put(3, 2, "report").ok());
  ASSERT_TRUE(board.Put(3, 2, "better report").ok());
  ASSERT_NE(board.Get(3, 1), nullptr);
  EXPECT_EQ(*board.Get(3, 1), "card");
  EXPECT_EQ(*board.Get(3, 2), "better report");
  EXPECT_EQ(board.Get(3, 3), nullptr);
  EXPECT_EQ(board.Get(2, 1), nullptr);
  board.Leave(3);
  EXPECT_EQ(board.Get(3, 1), nullptr);
  EXPECT_EQ(board.worker_count(), 0);
}

// A check that was broken off is not mixed with the next one.
TEST(CheckBoardTest, ForgetsWhoIsGone) {
  CheckBoard board;
  ASSERT_TRUE(board.Greet(0, 77, kStart).ok());
  ASSERT_TRUE(board.Put(0, 1, "old").ok());
  ASSERT_TRUE(board.Greet(1, 78, kStart).ok());
  ASSERT_TRUE(board.Put(1, 1, "old too").ok());
  ASSERT_TRUE(board.Greet(0, 99, kStart).ok());
  EXPECT_EQ(board.Get(0, 1), nullptr) << "another process of the same rank";
  ASSERT_TRUE(board.Greet(0, 99, kStart + kLife).ok());
  board.Forget(kStart + kLife + std::chrono::seconds(1));
  EXPECT_EQ(board.Get(1, 1), nullptr) << "not heard for long";
  EXPECT_EQ(board.worker_count(), 1) << "heard a second ago";
}

TEST(CheckBoardTest, HasLimits) {
  CheckBoard board;
  EXPECT_FALSE(board.Greet(-1, 1, kStart).ok());
  EXPECT_FALSE(board.Greet(kWorldSizeMax, 1, kStart).ok());
  ASSERT_TRUE(board.Greet(0, 1, kStart).ok());
  const std::string longest(kCheckNoteBytesMax, 'x');
  EXPECT_FALSE(board.Put(0, 1, longest + "x").ok());
  EXPECT_FALSE(board.Put(0, 0, "x").ok());
  EXPECT_FALSE(board.Put(0, kCheckStagesMax + 1, "x").ok());
  int64_t bytes = 0;
  absl::Status status;
  for (int rank = 0; rank < kWorldSizeMax && status.ok(); ++rank) {
    ASSERT_TRUE(board.Greet(rank, 1, kStart).ok());
    status = board.Put(rank, 1, longest);
    if (status.ok()) bytes += kCheckNoteBytesMax;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(bytes, kCheckBoardBytesMax);
  // Replacing and leaving give the bytes back.
  ASSERT_TRUE(board.Put(0, 1, "short").ok());
  ASSERT_TRUE(board.Put(1, 2, std::string(1000, 'x')).ok());
  board.Leave(2);
  EXPECT_TRUE(board.Put(3, 2, longest).ok());
}

}  // namespace
}  // namespace starring
