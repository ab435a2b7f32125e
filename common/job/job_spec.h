// The settings on which all processes of one job must agree, and how long the processes wait for each other.
//
// The agreement has two checks: the ranks compare settings before the first step (SerializeAgreement), and each sum
// over the ranks carries its purpose (SumKind).
#ifndef STARRING_COMMON_JOB_JOB_SPEC_H_
#define STARRING_COMMON_JOB_JOB_SPEC_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/job/bucket_map.h"
#include "common/job/layout.h"

namespace starring {

struct JobSpec {
  int rank = 0;
  int world_size = 1;
  int64_t first_step = 0;  // 0, or the step a checkpoint continues with
  OptimizerConfig optimizer;
  LearningRateSchedule schedule;
  SumOrder sum_order = SumOrder::kChain;
  bool deterministic = true;  // flags and seed decide the bits (Cell::kDeterministic)
  int micro_batches = 0;      // leaves of a step's sum (common/job/leaf_shares.h), with kTree; 0: every worker is one
  std::vector<int> leaf_owners;  // by leaf the rank that computes it, in an elastic run; empty: dealt evenly
  Layout layout;
  BucketMap buckets;

  // Every other setting that must be equal on all ranks, as (flag, value): model, dataset, seed, global_batch, ...
  // Compared pair by pair; a difference is refused with the flag's name and both values. A name with a dot is not a
  // flag but a fact that the process has found out: "data.train".
  std::vector<std::pair<std::string, std::string>> agreed_flags;

  // The optimizer's state vectors at first_step, each layout.element_count() long; empty means zeros. Only rank 0's are
  // used.
  std::vector<std::span<const float>> optimizer_state;
  // The owners already have the parameters and state of first_step, so no rank's are taken.
  bool owners_have_parameters = false;

  absl::Duration join_deadline = absl::Seconds(60);      // for all processes to show up
  absl::Duration exchange_deadline = absl::Seconds(60);  // for any one bucket or sum
};

// The part of a JobSpec that all ranks must share, as bytes for the wire (a serialised proto/starring/v1/job.proto).
std::string SerializeAgreement(const JobSpec& job);

// Compares two agreements. InvalidArgument naming the first flag or field that differs and both values:
// "rank 1 has --seed=2, rank 0 has --seed=1: start all workers with the same flags".
absl::Status CompareAgreements(int rank_a, const std::string& a, int rank_b, const std::string& b);

// A server has no model and no flags of its own. It learns these values from the first agreement that it sees. The
// layout's hash and length travel, the layout does not.
struct Agreement {
  int world_size = 1;
  int64_t first_step = 0;
  std::string layout_hash;
  OptimizerConfig optimizer;
  LearningRateSchedule schedule;
  SumOrder sum_order = SumOrder::kChain;
  int micro_batches = 0;
  std::vector<int> leaf_owners;  // as in JobSpec
  BucketMap buckets;
  std::vector<std::pair<std::string, std::string>> agreed_flags;
};

// InvalidArgument, naming the field and its value, if `bytes` are not an agreement or a value is out of bounds.
absl::StatusOr<Agreement> ParseAgreement(const std::string& bytes);

// By leaf the rank that computes it; without micro-batches every rank is a leaf.
std::vector<int> LeafOwnersOf(const JobSpec& job);
std::vector<int> LeafOwnersOf(const Agreement& agreement);

// The purpose of a sum over all ranks. Ranks that have diverged (another data set, another build) would otherwise add
// numbers of different meaning, or wait for each other in vain. So a sum carries its purpose and its length, and the
// process that adds the parts refuses parts that differ.
//
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
  kBucketTrial = 10,
  kEvaluation = 11,
  kLeafValues = 12,
};

// "a vote to stop". Takes any number: a process of another build may send an unknown one.
std::string_view SumPurposeName(SumPurpose purpose);

struct SumKind {
  SumPurpose purpose = SumPurpose::kPixels;
  int64_t value_count = 0;
};

// FailedPrecondition, naming both ranks and what each adds, unless both add the same.
absl::Status CheckSameSum(int rank_a, const SumKind& a, int rank_b, const SumKind& b);

}  // namespace starring

#endif  // STARRING_COMMON_JOB_JOB_SPEC_H_
