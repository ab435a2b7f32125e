#include "common/reduce/star_pieces.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// How often each element is in a piece, and that nobody's message is too long.
void ExpectEveryElementOnce(const StarSum& sum, int64_t message_bytes_max) {
  const StarPieces pieces(&sum, message_bytes_max);
  std::vector<int> count(sum.elements.end, 0);
  for (int owner = 0; owner < sum.owners.owner_count(); ++owner) {
    for (int64_t stride = 0; stride < pieces.stride_count(); ++stride) {
      int64_t size = 0;
      int ranges = 0;
      pieces.ForEachRange(stride, owner, [&](ElementRange range, int64_t at) {
        EXPECT_GT(range.size(), 0);
        EXPECT_EQ(at, size);
        size += range.size();
        ++ranges;
        for (int64_t e = range.begin; e < range.end; ++e) ++count[e];
      });
      EXPECT_EQ(pieces.PieceAt(stride, owner).bytes, size * sum.element_bytes);
      EXPECT_EQ(pieces.PieceAt(stride, owner).only.size(), ranges == 1 ? size : 0);
      if (!pieces.IsJoined(stride)) {
        EXPECT_LE(size * sum.element_bytes, std::max(message_bytes_max, ChunkBytesFor(sum.owners.owner_count())));
      }
    }
  }
  EXPECT_EQ(std::ranges::count(count, 1), sum.elements.size());
  EXPECT_EQ(std::ranges::count(count, 0), sum.elements.begin);
}

TEST(StarPiecesTest, EveryElementIsInOnePiece) {
  for (const int owners : {1, 2, 3, 5, 8, 16}) {
    const int64_t block = ReductionBlockElements(owners);
    for (const int64_t size : {int64_t{1}, int64_t{5'000}, block / 2, block, block + 1, 3 * block + 4'096, 9 * block}) {
      SCOPED_TRACE(testing::Message() << owners << " owners, " << size << " elements");
      for (const int64_t bytes : {int64_t{0}, int64_t{128} << 10}) {
        ExpectEveryElementOnce({.elements = {block, block + size}, .owners = OwnerMap::JoinedChunks(owners)}, bytes);
      }
      ExpectEveryElementOnce({.number = 7, .elements = {64, 64 + size}, .owners = OwnerMap::Ranges(owners)}, 16 << 10);
      ExpectEveryElementOnce(
          {.elements = {0, size}, .owners = OwnerMap::Ranges(owners, sizeof(int16_t)), .element_bytes = 2}, 16 << 10);
      ExpectEveryElementOnce({.elements = {0, size}, .owners = OwnerMap::ShardRanges(owners)}, int64_t{128} << 10);
    }
  }
}

// With eight ranks a message has the chunks of four blocks. A short last block has few owners, and no other block.
TEST(StarPiecesTest, AStrideIsAsManyBlocksAsAMessageHolds) {
  constexpr int kRanks = 8;
  const int64_t block = ReductionBlockElements(kRanks);
  const StarSum sum = {.elements = {0, 9 * block + 10'000}, .owners = OwnerMap::JoinedChunks(kRanks)};
  const StarPieces pieces(&sum, kChunkBytesMax);
  EXPECT_EQ(pieces.stride_count(), 4);
  for (int owner = 0; owner < kRanks; ++owner) {
    EXPECT_EQ(pieces.PieceAt(0, owner).bytes, kChunkBytesMax);
    EXPECT_EQ(pieces.PieceAt(2, owner).bytes, ChunkBytesFor(kRanks));
  }
  EXPECT_FALSE(pieces.IsJoined(2));
  EXPECT_TRUE(pieces.IsJoined(3));
  EXPECT_FALSE(pieces.IsJoined(4));
}

}  // namespace
}  // namespace starring
