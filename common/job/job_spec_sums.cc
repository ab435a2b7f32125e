#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/job/job_spec.h"

namespace starring {
namespace {

std::string Describe(int rank, const SumKind& kind) {
  const std::string_view name = SumPurposeName(kind.purpose);
  return absl::StrCat("rank ", rank, " adds ", kind.value_count, kind.value_count == 1 ? " value for " : " values for ",
                      absl::string_view(name.data(), name.size()));
}

}  // namespace

std::string_view SumPurposeName(SumPurpose purpose) {
  // The switch has no default, so that the compiler reports a purpose that has no name. A number of another build's
  // reaches the last line.
  switch (purpose) {
    case SumPurpose::kPixels:
      return "the mean of the pixels";
    case SumPurpose::kStopVote:
      return "a vote to stop";
    case SumPurpose::kRunningStatistics:
      return "running statistics";
    case SumPurpose::kLosses:
      return "the losses of steps";
    case SumPurpose::kEpoch:
      return "the end of an epoch";
    case SumPurpose::kWorkerUse:
      return "the use of processors";
    case SumPurpose::kDigest:
      return "the digest of the parameters";
    case SumPurpose::kDigestVerdict:
      return "the comparison of digests";
    case SumPurpose::kCheckpoint:
      return "a checkpoint";
    case SumPurpose::kBucketTrial:
      return "the choice of --bucket_bytes";
    case SumPurpose::kEvaluation:
      return "the losses of an evaluation";
    case SumPurpose::kLeafValues:
      return "the losses and statistics of a step";
  }
  return "a purpose that this build does not know";
}

absl::Status CheckSameSum(int rank_a, const SumKind& a, int rank_b, const SumKind& b) {
  // The values differ from rank to rank. Purpose and number are what a sum can compare.
  if (a.purpose == b.purpose && a.value_count == b.value_count) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("in one sum ", Describe(rank_a, a), ", ", Describe(rank_b, b),
                                                    ": start all workers from the same build, with the same data"));
}

}  // namespace starring
