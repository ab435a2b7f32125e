#include "common/reduce/piece_memory.h"

#include <set>
#include <vector>

#include "common/base/memory.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(PieceMemoryTest, ArraysDoNotOverlapAndFillTheMemory) {
  for (const int workers : {1, 3, 40}) {
    AlignedFloats memory(PieceMemory::BytesNeeded(workers) / 4);
    const std::span<std::byte> bytes = std::as_writable_bytes(memory.span());
    const PieceMemory places(bytes, workers);
    std::set<const std::byte*> begins;
    for (int place = 0; place < kPiecesOnTheirWay; ++place) {
      std::vector<std::span<std::byte>> arrays = {places.Sum(place)};
      for (int rank = 0; rank < workers; ++rank) arrays.push_back(places.Contribution(place, rank));
      for (const std::span<std::byte> array : arrays) {
        EXPECT_EQ(std::ssize(array), PieceBytes(workers));
        EXPECT_EQ((array.data() - bytes.data()) % PieceBytes(workers), 0);
        EXPECT_LE(array.data() + array.size(), bytes.data() + bytes.size());
        begins.insert(array.data());
      }
    }
    EXPECT_EQ(std::ssize(begins), kPiecesOnTheirWay * (workers + 1));
  }
}

}  // namespace
}  // namespace starring
