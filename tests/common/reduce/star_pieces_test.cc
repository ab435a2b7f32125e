#include "common/reduce/star_pieces.h"

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(StarPiecesTest, PiecesAreShorterWithManyRanks) {
  EXPECT_EQ(PieceBytes(1), 256 << 10);
  EXPECT_EQ(PieceBytes(16), 256 << 10);
  EXPECT_EQ(PieceBytes(64), 64 << 10);
  EXPECT_EQ(PieceBytes(1024), 16 << 10);
  EXPECT_EQ(PieceElements(2, ElementType::kFloat16), 128 << 10);
}

}  // namespace
}  // namespace starring
