#include "common/reduce/ring_memory.h"

#include <set>

#include "common/base/memory.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(RingMemoryTest, PlacesDoNotOverlapAndFillTheMemory) {
  for (const int ranks : {2, 3, 70}) {
    AlignedFloats memory(RingMemory::BytesNeeded(ranks) / 4);
    const std::span<std::byte> bytes = std::as_writable_bytes(memory.span());
    const RingMemory places(bytes, ranks);
    std::set<const std::byte*> begins;
    for (int slot = 0; slot < RingBlocksInFlightMax(ranks); ++slot) {
      for (int hop = 0; hop < ranks - 1; ++hop) {
        for (const std::span<std::byte> place : {places.Partial(slot, hop), places.Sum(slot, hop)}) {
          EXPECT_EQ(std::ssize(place), ChunkBytesFor(ranks));
          EXPECT_EQ((place.data() - bytes.data()) % ChunkBytesFor(ranks), 0);
          EXPECT_LE(place.data() + place.size(), bytes.data() + bytes.size());
          begins.insert(place.data());
        }
      }
    }
    EXPECT_EQ(std::ssize(begins), RingBlocksInFlightMax(ranks) * 2 * (ranks - 1));
  }
}

}  // namespace
}  // namespace starring
