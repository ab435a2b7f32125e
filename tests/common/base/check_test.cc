#include "common/base/check.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

enum class Colour { kRed = 3, kBlue = 4 };

TEST(CheckTest, PassesWithoutASound) {
  CHECK(true) << "not evaluated";
  CHECK_EQ(1, 1);
  CHECK_NE(1, 2);
  CHECK_LT(1, 2);
  CHECK_LE(2, 2);
  CHECK_GT(2, 1);
  CHECK_GE(2, 2);
  CHECK_OK(absl::OkStatus());
  CHECK_OK(absl::StatusOr<int>(3));
}

TEST(CheckTest, EvaluatesOperandsOnce) {
  int calls = 0;
  const auto count = [&] { return ++calls; };
  CHECK_EQ(count(), 1);
  CHECK(count() == 2);
  EXPECT_EQ(calls, 2);
}

// std::vector::size() against a negative int64_t: by value, not by conversion to unsigned.
TEST(CheckTest, ComparesSignedWithUnsignedByValue) {
  CHECK_LT(int64_t{-1}, size_t{0});
  CHECK_NE(int64_t{-1}, ~size_t{0});
}

TEST(CheckTest, DanglesNoElse) {
  bool reached = false;
  if (reached)
    CHECK(false);
  else
    reached = true;
  EXPECT_TRUE(reached);
}

TEST(CheckDeathTest, PrintsPlaceConditionBothValuesAndMessage) {
  const int rank = 3, world_size = 2;
  EXPECT_DEATH(CHECK_LT(rank, world_size) << "in bucket " << 7,
               "check_test.cc:[0-9]+: CHECK failed: rank < world_size \\(3 vs. 2\\) in bucket 7");
  EXPECT_DEATH(CHECK(rank == world_size) << "why", "CHECK failed: rank == world_size why");
  EXPECT_DEATH(CHECK_EQ(Colour::kRed, Colour::kBlue), "\\(3 vs. 4\\)");
  EXPECT_DEATH(CHECK_OK(absl::NotFoundError("no file")), "NOT_FOUND: no file");
  EXPECT_DEATH(CHECK_OK(absl::StatusOr<int>(absl::DataLossError("short"))), "DATA_LOSS: short");
}

}  // namespace
}  // namespace starring
