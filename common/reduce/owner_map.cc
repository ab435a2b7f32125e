#include "common/reduce/owner_map.h"

#include <algorithm>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"

namespace starring {
namespace {

// Slices are whole cache lines, so that no two owners write to one, and so that slices stay aligned for vector loads.
constexpr int64_t kLineBytes = 64;

}  // namespace

OwnerMap::OwnerMap(Cut cut, int owner_count, int64_t element_bytes, int64_t slice_bytes_min)
    : cut_(cut), owner_count_(owner_count), element_bytes_(element_bytes), slice_bytes_min_(slice_bytes_min) {
  CHECK_GE(owner_count, 1);
  CHECK(element_bytes > 0 && kLineBytes % element_bytes == 0) << element_bytes;
}

OwnerMap OwnerMap::SplitChunks(int rank_count) { return {Cut::kSplitChunks, rank_count, sizeof(float), 0}; }

OwnerMap OwnerMap::JoinedChunks(int rank_count) {
  return {Cut::kJoinedChunks, rank_count, sizeof(float), kSliceBytesMin};
}

OwnerMap OwnerMap::Ranges(int owner_count, int64_t element_bytes) {
  return {Cut::kRanges, owner_count, element_bytes, kSliceBytesMin};
}

OwnerMap OwnerMap::ShardRanges(int shard_count) { return {Cut::kRanges, shard_count, sizeof(float), 0}; }

std::vector<ElementRange> OwnerMap::SliceOf(const Sum& sum, int owner) const {
  std::vector<ElementRange> slice;
  const auto add = [&slice](ElementRange range) {
    if (range.size() > 0) slice.push_back(range);
  };
  if (cut_ == Cut::kRanges) {
    add(RangeOf(sum, owner));
    return slice;
  }
  const int64_t whole = ReductionBlockElements(owner_count_);
  slice.reserve((sum.elements.size() + whole - 1) / whole);
  for (int64_t begin = sum.elements.begin; begin < sum.elements.end; begin += whole) {
    add(SliceOfBlock({begin, std::min(begin + whole, sum.elements.end)}, owner));
  }
  return slice;
}

int OwnerMap::OwnersOfBytes(int64_t bytes) const {
  if (slice_bytes_min_ == 0) return owner_count_;
  return static_cast<int>(std::clamp<int64_t>(bytes / slice_bytes_min_, 1, owner_count_));
}

int64_t OwnerMap::LinesOf(const Sum& sum) const {
  const int64_t line_elements = kLineBytes / element_bytes_;
  return (sum.elements.size() + line_elements - 1) / line_elements;
}

int OwnerMap::OwnersOf(const Sum& sum) const {
  CHECK(cut_ == Cut::kRanges);
  return static_cast<int>(std::min<int64_t>(OwnersOfBytes(sum.elements.size() * element_bytes_), LinesOf(sum)));
}

ElementRange OwnerMap::RangeOf(const Sum& sum, int owner) const {
  CHECK(0 <= owner && owner < owner_count_) << owner;
  CHECK(cut_ == Cut::kRanges);
  const int64_t count = OwnersOfBytes(sum.elements.size() * element_bytes_);
  // The owners of a sum begin after those of the sum before, so that they take turns.
  // The number's remainder comes first: numbers have no limit, and a product with one could overflow.
  const int64_t first = sum.number % owner_count_ * count % owner_count_;
  const int64_t part = (owner - first + owner_count_) % owner_count_;
  if (part >= count) return {sum.elements.end, sum.elements.end};
  const int64_t line_elements = kLineBytes / element_bytes_;
  const int64_t lines = LinesOf(sum);
  // A part ends where the next one begins, so the parts cover the sum.
  // Parts differ by one line at most.
  const auto begin_of = [&](int64_t p) {
    return std::min(sum.elements.begin + lines * p / count * line_elements, sum.elements.end);
  };
  return {begin_of(part), begin_of(part + 1)};
}

int OwnerMap::OwnersOfBlock(ElementRange block) const {
  CHECK(cut_ != Cut::kRanges);
  const int64_t whole = ReductionBlockElements(owner_count_);
  CHECK_EQ(block.begin % whole, 0);
  CHECK(block.size() > 0 && block.size() <= whole) << block.size();
  // A whole block of more than 16 ranks has shorter chunks, but those of several blocks share a message.
  return block.size() == whole ? owner_count_ : OwnersOfBytes(block.size() * element_bytes_);
}

OwnerMap::ChunkRun OwnerMap::ChunksOf(ElementRange block, int owner) const {
  CHECK(0 <= owner && owner < owner_count_) << owner;
  const int count = OwnersOfBlock(block);
  // Chunk c is in part floor(c * count / N), as element e is in chunk floor(e * N / L).
  const int part = owner * count / owner_count_;
  // The least chunk of part p: the inverse of the formula above.
  const auto first_of = [&](int p) { return (p * owner_count_ + count - 1) / count; };
  const ChunkRun chunks = {first_of(part), first_of(part + 1)};
  // Rank 0 has other things to do, so it is not the first in turn.
  const int64_t turn = block.begin / ReductionBlockElements(owner_count_) + 1;
  return owner == chunks.begin + static_cast<int>(turn % chunks.size()) ? chunks : ChunkRun{};
}

ElementRange OwnerMap::SliceOfBlock(ElementRange block, int owner) const {
  const ChunkRun chunks = ChunksOf(block, owner);
  if (chunks.size() == 0) return {block.begin, block.begin};
  // The chunks of a run are neighbours, so they are one range.
  return {RingChunk(block, chunks.begin, owner_count_).begin, RingChunk(block, chunks.end - 1, owner_count_).end};
}

}  // namespace starring
