#include "worker/exchange/peer/cuda_aware/packed_rows.h"

#include <vector>

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

}  // namespace
}  // namespace starring
