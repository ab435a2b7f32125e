// What a sum over all ranks is for. Ranks that have taken different ways (another data set, another build) would
// otherwise add numbers of different meaning, or wait for each other in vain: a sum carries its purpose and its length,
// and whoever adds refuses parts that differ.
#ifndef STARRING_COMMON_SUM_PURPOSE_H_
#define STARRING_COMMON_SUM_PURPOSE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace starring {

// Numbers go over the wire: never change one.
enum class SumPurpose : int32_t {
  kPixels = 1,
  kStopVote = 2,
  kRunningStatistics = 3,
  kLosses = 4,
  kEpoch = 5,
  kWorkerUse = 6,
  kDigest = 7,
  kDigestVerdict = 8,
  kCheckpoint = 9,
};

// "a vote to stop". For any number, also one of another build.
std::string_view SumPurposeName(SumPurpose purpose);

struct SumKind {
  SumPurpose purpose = SumPurpose::kPixels;
  int64_t value_count = 0;
};

// FailedPrecondition naming both ranks, and what each adds, unless both add the same.
absl::Status CheckSameSum(int rank_a, const SumKind& a, int rank_b, const SumKind& b);

}  // namespace starring

#endif  // STARRING_COMMON_SUM_PURPOSE_H_
