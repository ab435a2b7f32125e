#include "worker/exchange/peer/cuda_aware/packed_rows.h"

#include <vector>

#include "common/base/limits.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

class PackedRowsTest : public testing::Test {
 protected:
  // A copy of `count` floats.
  bool Add(int64_t from, int64_t to, int64_t count = 4) {
    return rows_.Add(std::span<const float>(from_).subspan(from, count), std::span(to_).subspan(to, count));
  }
  PackedRows rows_;
  std::vector<float> from_ = std::vector<float>(100), to_ = std::vector<float>(100);
};

TEST_F(PackedRowsTest, TakesRowsThatArePacked) {
  EXPECT_EQ(rows_.count(), 0);
  EXPECT_TRUE(Add(2, 8) && Add(14, 12) && Add(26, 16));
  EXPECT_EQ(rows_.count(), 3);
  EXPECT_EQ(rows_.length(), 4);
  EXPECT_EQ(rows_.step(), 12);
  EXPECT_TRUE(rows_.packs());
  EXPECT_EQ(rows_.from(), &from_[2]);
  EXPECT_EQ(rows_.to(), &to_[8]);
}

TEST_F(PackedRowsTest, TakesRowsThatAreUnpacked) {
  EXPECT_TRUE(Add(8, 2) && Add(12, 14) && Add(16, 26));
  EXPECT_EQ(rows_.step(), 12);
  EXPECT_FALSE(rows_.packs());
}

TEST_F(PackedRowsTest, RefusesWhatIsNotTheNextRow) {
  ASSERT_TRUE(Add(2, 8));
  EXPECT_FALSE(Add(14, 12, 3)) << "shorter";
  EXPECT_FALSE(Add(14, 13)) << "gaps on both sides";
  EXPECT_FALSE(Add(0, 12)) << "before the first one";
  EXPECT_FALSE(Add(2, 8)) << "the same again";
  ASSERT_TRUE(Add(14, 12));
  EXPECT_FALSE(Add(27, 16)) << "another distance";
  EXPECT_FALSE(Add(26, 17)) << "a gap";
  EXPECT_EQ(rows_.count(), 2);
  EXPECT_TRUE(Add(26, 16));
}

TEST_F(PackedRowsTest, RefusesRowsThatAreFurtherApartThanABlockIsLong) {
  constexpr int64_t kLength = 2, kFarthest = kLength * kWorldSizeMax;
  from_.resize(kFarthest + kLength + 1);
  ASSERT_TRUE(Add(0, 0, kLength));
  EXPECT_FALSE(Add(kFarthest + 1, kLength, kLength));
  EXPECT_TRUE(Add(kFarthest, kLength, kLength));
}

// One kernel copies all rows, in any order.
TEST_F(PackedRowsTest, RefusesARowThatReadsWhatAnotherOneWrites) {
  const auto add = [this](int64_t from, int64_t to) {
    return rows_.Add(std::span<const float>(from_).subspan(from, 4), std::span(from_).subspan(to, 4));
  };
  ASSERT_TRUE(add(20, 16));
  EXPECT_FALSE(add(30, 20)) << "the first one's source";
  rows_ = {};
  ASSERT_TRUE(add(10, 20));
  EXPECT_FALSE(add(20, 24)) << "what the first one writes";
  rows_ = {};
  ASSERT_TRUE(add(0, 16));
  EXPECT_TRUE(add(8, 20));
  EXPECT_FALSE(add(16, 24)) << "what the first one writes, as the third row";
  rows_ = {};
  ASSERT_TRUE(add(0, 4));
  EXPECT_FALSE(add(4, 8)) << "adjacent";
}

}  // namespace
}  // namespace starring
