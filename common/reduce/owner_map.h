// Decides which process owns which elements of a *sum*: a bucket of the parameter vector, or an array that PyTorch
// reduces. The *owner* of an element adds its contributions. Exchanges, checkpoints, snapshots and memory checks all
// use this value; nothing else decides ownership.
//
// There are two cuts.
//
//   chunks   Owners are ranks. Rank c owns ring chunk c of every reduction block (common/arithmetic/reduction_order.h).
//            With the order of a chain, all elements of a message then begin with the same rank. Where ranks send to
//            owners directly, the last block of the vector may be too short for that: see SplitChunks and JoinedChunks.
//   ranges   Every owner has one contiguous range of a sum, which begins at a 64-byte line if the sum does.
//
// A slice has at least kSliceBytesMin bytes, if its sum has as many: the message or wake-up for a shorter slice costs
// more than its bytes. So a short sum has few owners, and successive short sums have different owners in turn. There
// are two exceptions. A ring's chunks have no minimum. And each server owns a part of every bucket, because a shard
// counts the job's steps, and takes snapshots, by the parts that it owns.
//
// The choice of an owner changes no bit of a sum.
//
// Thread safety: a value.
#ifndef STARRING_COMMON_REDUCE_OWNER_MAP_H_
#define STARRING_COMMON_REDUCE_OWNER_MAP_H_

#include <cstdint>
#include <vector>

#include "common/base/element_range.h"

namespace starring {

class OwnerMap {
 public:
  static constexpr int64_t kSliceBytesMin = 16 << 10;

  // One owner of everything: a job with one worker, or one where every rank owns all elements.
  OwnerMap() = default;
  // A ring of `rank_count` ranks.
  static OwnerMap SplitChunks(int rank_count);
  // Ranks that send to owners directly. A short last block may have few owners: as many as get kSliceBytesMin each, at
  // least one. Its chunks are divided among them, and an owner is one of the ranks whose chunks it has.
  static OwnerMap JoinedChunks(int rank_count);
  // Ranks that share memory, and the owners of PyTorch's arrays. `element_bytes` is a power of two.
  static OwnerMap Ranges(int owner_count, int64_t element_bytes = sizeof(float));
  // Servers. A sum of fewer lines than there are shards has no part for some of them.
  static OwnerMap ShardRanges(int shard_count);

  int owner_count() const { return owner_count_; }
  // The cut: chunks, otherwise ranges.
  bool has_chunks() const { return cut_ != Cut::kRanges; }

  // A sum, and the number that says whose turn it is: a bucket's, or a reduction's. With chunks, `elements` are whole
  // blocks of the vector; its last block may be shorter.
  struct Sum {
    ElementRange elements;
    int64_t number = 0;
  };
  // The ranges of `sum` that `owner` has, ascending, without empty ranges. REQUIRES: 0 <= owner < owner_count().
  std::vector<ElementRange> SliceOf(const Sum& sum, int owner) const;

  // With ranges: the same, or an empty range. Allocates nothing.
  ElementRange RangeOf(const Sum& sum, int owner) const;
  // With ranges: how many owners have elements of `sum`.
  int OwnersOf(const Sum& sum) const;

  // With chunks: the chunks of one block that `owner` has, [begin, end), and their elements. Empty for a rank that owns
  // nothing.
  struct ChunkRun {
    int begin = 0;
    int end = 0;
    int size() const { return end - begin; }
  };
  ChunkRun ChunksOf(ElementRange block, int owner) const;
  ElementRange SliceOfBlock(ElementRange block, int owner) const;
  // With chunks: how many owners `block` has, at least 1. Only a block that is shorter than others has few.
  int OwnersOfBlock(ElementRange block) const;

 private:
  enum class Cut { kSplitChunks, kJoinedChunks, kRanges };
  OwnerMap(Cut cut, int owner_count, int64_t element_bytes, int64_t slice_bytes_min);

  int OwnersOfBytes(int64_t bytes) const;
  int64_t LinesOf(const Sum& sum) const;

  Cut cut_ = Cut::kRanges;
  int owner_count_ = 1;
  int64_t element_bytes_ = sizeof(float);
  int64_t slice_bytes_min_ = 0;  // 0: all owners have a part
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_OWNER_MAP_H_
