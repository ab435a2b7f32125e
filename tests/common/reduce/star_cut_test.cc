#include "common/reduce/star_cut.h"

#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

StarCut Cut(int64_t number, int64_t count, ElementType type, int owner_count) {
  return {{.number = number, .head = {.count = count, .type = type}}, owner_count};
}

TEST(StarCutTest, SlicesCoverTheArrayOnce) {
  for (const int owners : {1, 2, 3, 8, 100}) {
    for (const int64_t count : {0, 1, 31, 5'000, 40'000, 1'000'003}) {
      for (const int64_t number : {0, 1, 7}) {
        const StarCut cut = Cut(number, count, ElementType::kFloat32, owners);
        std::vector<int> covered(count, 0);
        for (int owner = 0; owner < owners; ++owner) {
          const ElementRange slice = cut.SliceOf(owner);
          for (int64_t i = slice.begin; i < slice.end; ++i) ++covered[i];
        }
        EXPECT_EQ(covered, std::vector<int>(count, 1)) << owners << " owners, " << count;
      }
    }
  }
}

TEST(StarCutTest, ShortArraysHaveFewOwnersInTurn) {
  std::vector<int> owned(4, 0);
  for (int64_t number = 0; number < 8; ++number) {
    int owners = 0;
    for (int owner = 0; owner < 4; ++owner) {
      if (Cut(number, 100, ElementType::kFloat32, 4).SliceOf(owner).size() == 0) continue;
      ++owners;
      ++owned[owner];
    }
    EXPECT_EQ(owners, 1);
  }
  EXPECT_EQ(owned, std::vector<int>(4, 2));
}

TEST(StarCutTest, SlicesHaveAtLeastTheirBytes) {
  for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16}) {
    const int64_t count = 5 * StarCut::kSliceBytesMin / ElementBytes(type);
    for (int owner = 0; owner < 8; ++owner) {
      const int64_t bytes = Cut(0, count, type, 8).SliceOf(owner).size() * ElementBytes(type);
      EXPECT_TRUE(bytes == 0 || bytes >= StarCut::kSliceBytesMin - 128) << bytes;
    }
  }
}

TEST(StarCutTest, PiecesAreShorterWithManyRanks) {
  EXPECT_EQ(PieceBytes(1), 256 << 10);
  EXPECT_EQ(PieceBytes(16), 256 << 10);
  EXPECT_EQ(PieceBytes(64), 64 << 10);
  EXPECT_EQ(PieceBytes(1024), 16 << 10);
  EXPECT_EQ(PieceElements(2, ElementType::kFloat16), 128 << 10);
}

}  // namespace
}  // namespace starring
