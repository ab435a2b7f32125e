// One sum over all ranks of a group: what a rank asks for, what it tells the others about it, and how they differ.
//
// Words. A *reduction* is the sum of one array over all ranks. The ranks begin their reductions in the same order, so a
// reduction's *number*, counted from 0, names it on all of them. The *head* is what must be equal on all ranks.
//
// Thread safety: plain values and pure functions.
#ifndef STARRING_COMMON_REDUCE_ARRAYS_REDUCTION_H_
#define STARRING_COMMON_REDUCE_ARRAYS_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/element_range.h"
#include "common/reduce/arrays/element_sum.h"

namespace starring {

// Sent as is, in little-endian memory layout.
struct ReductionHead {
  // kEnd: the rank closes the group; only servers are told, and the other fields mean nothing.
  enum class Kind : int32_t { kSum = 1, kEnd = 2 };
  Kind kind = Kind::kSum;
  int32_t bucket = 0;
  int64_t step = 0;
  uint64_t layout = 0;  // a hash of what the array contains
  int64_t count = 0;    // of elements
  ElementType type = ElementType::kFloat32;
  float divisor = 1.0f;

  SumResult result() const { return {.type = type, .divisor = divisor}; }
  int64_t bytes() const { return count * ElementBytes(type); }
};
static_assert(sizeof(ReductionHead) == 40);

struct Reduction {
  int64_t number = 0;
  ReductionHead head;
  std::byte* data = nullptr;  // the contribution, and then the sum: head.count elements, aligned for their type
  void* arrival = nullptr;    // of an array in GPU memory: the event after which the contribution is there
};

// The elements that `owner`, one of `owner_count`, adds. REQUIRES: CheckHead accepts the head.
ElementRange SliceOf(const Reduction& reduction, int owner, int owner_count);

// InvalidArgument, with the way out, for a head that no rank may have.
absl::Status CheckHead(const ReductionHead& head);

// OK if both ranks have the same head; otherwise InvalidArgument, naming both ranks and both values of what differs.
struct RankAndHead {
  int rank = 0;
  ReductionHead head;
};
absl::Status CheckSameHead(const RankAndHead& a, const RankAndHead& b);

// "step 12, bucket 3"
std::string DescribeReduction(const ReductionHead& head);

// Equal heads have equal hashes, on all ranks.
uint64_t HashOf(const ReductionHead& head);

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_ARRAYS_REDUCTION_H_
