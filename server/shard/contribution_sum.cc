#include "server/shard/contribution_sum.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/array_passes.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace starring {
namespace {

int64_t ByteCount(std::span<const BytePiece> pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                         [](int64_t sum, BytePiece piece) { return sum + std::ssize(piece); });
}

int64_t SliceBytes(const OwnedSlices& owned, int bucket) {
  return owned.slice_element_count(bucket) * static_cast<int64_t>(sizeof(float));
}

// The inputs that are added at an element, in order. With a chain, or if each worker is a leaf, each worker has one
// input.
PieceSum SumOf(ReductionOrder reduction, const std::vector<Contributor>& contributors) {
  if (reduction.order == SumOrder::kChain) return PieceSum(reduction);
  std::vector<int> leaves;
  for (const Contributor& one : contributors) leaves.push_back(one.leaves.size());
  return PieceSum::OfNodes(std::move(leaves));
}

}  // namespace

absl::StatusOr<ContributionSum> ContributionSum::Create(OwnedSlices::Options owned, ReductionOrder reduction,
                                                        std::vector<int> leaf_owners) {
  const int world_size = reduction.world_size;
  if (world_size < 1 || world_size > kWorldSizeMax) {
    return absl::InvalidArgumentError(absl::StrCat("world_size is ", world_size, ", it must be 1 to ", kWorldSizeMax));
  }
  const auto leaf_count = std::ssize(leaf_owners);
  if (leaf_count != 0 && (leaf_count < world_size || leaf_count > kMicroBatchesMax)) {
    return absl::InvalidArgumentError(absl::StrCat("micro_batches is ", leaf_count, ", it must be ", world_size,
                                                   ", the number of workers, to ", kMicroBatchesMax));
  }
  if (leaf_count != 0 && reduction.order != SumOrder::kTree) {
    return absl::InvalidArgumentError(absl::StrCat("micro_batches is ", leaf_count, ", which need sum_order TREE"));
  }
  if (leaf_owners.empty()) leaf_owners = DealLeavesEvenly(0, world_size);
  ASSIGN_OR_RETURN(OwnedSlices slices, OwnedSlices::Create(std::move(owned)));
  return ContributionSum(std::move(slices), reduction, ContributorsOf(leaf_owners));
}

ContributionSum::ContributionSum(OwnedSlices owned, ReductionOrder reduction, std::vector<Contributor> contributors)
    : owned_(std::move(owned)),
      reduction_(reduction),
      contributors_(std::move(contributors)),
      contributors_of_(reduction.world_size),
      buckets_(owned_.bucket_count()),
      release_(Release::LockStep(std::ssize(contributors_))),
      sum_(SumOf(reduction, contributors_)),
      contributed_count_(reduction.world_size),
      steps_complete_(owned_.first_step()) {
  for (int b = 0; b < owned_.bucket_count(); ++b) {
    buckets_[b].wait = CollectiveWait(reduction.world_size);
    buckets_[b].contributions.resize(contributors_.size());
    buckets_behind_ += owned_.slice_element_count(b) > 0;
  }
  for (const Contributor& one : contributors_) {
    auto& of_rank = contributors_of_[one.rank];
    if (std::ssize(of_rank) <= one.node) of_rank.resize(one.node + 1);
    of_rank[one.node] = static_cast<int>(&one - contributors_.data());
  }
}

const ContributionSum::Bucket& ContributionSum::BucketAt(int bucket) const {
  CHECK(0 <= bucket && bucket < std::ssize(buckets_)) << bucket;
  return buckets_[bucket];
}

absl::Status ContributionSum::CheckBytes(int bucket, std::span<const BytePiece> pieces, const char* what) const {
  CHECK(BucketAt(bucket).sealed == nullptr) << "bucket " << bucket << " has its parameters already";
  const int64_t byte_count = SliceBytes(owned_, bucket);
  if (ByteCount(pieces) == byte_count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("bucket ", bucket, " is given ", ByteCount(pieces), " bytes of ", what,
                                                 ", its slice has ", byte_count,
                                                 ": start all processes with the same flags"));
}

absl::Status ContributionSum::SetState(int bucket, int vector, std::span<const BytePiece> state) {
  RETURN_IF_ERROR(CheckBytes(bucket, state, "optimizer state"));
  CopyPieces(state, std::as_writable_bytes(owned_.state(bucket, vector)));
  return absl::OkStatus();
}

absl::Status ContributionSum::SetParameters(int bucket, std::span<const BytePiece> parameters) {
  RETURN_IF_ERROR(CheckBytes(bucket, parameters, "parameters"));
  const std::shared_ptr<SealedSlice> buffer = FreeBuffer(bucket);
  CopyPieces(parameters, std::as_writable_bytes(buffer->values_));
  buffer->step_ = owned_.first_step() - 1;
  buckets_[bucket].sealed = buffer;
  return absl::OkStatus();
}

absl::StatusOr<ContributeResult> ContributionSum::Contribute(Contribution contribution, Time now) {
  const LaneId from = contribution.from;
  const int64_t step = contribution.step;
  const int bucket = contribution.bucket;
  CHECK(0 <= from.rank && from.rank < reduction_.world_size) << from.rank;
  // All checks come first, so that a refused message changes nothing.
  const int64_t expected_bytes = SliceBytes(owned_, bucket);
  if (const int64_t sent = ByteCount(contribution.pieces); sent != expected_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", from.rank, " sends ", sent, " bytes for bucket ", bucket,
                                                   " at step ", step, ", the slice has ", expected_bytes,
                                                   ": start worker and server with the same flags"));
  }
  Bucket& b = buckets_[bucket];
  if (b.sealed == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", from.rank, " contributes to bucket ", bucket,
                                                      " at step ", step,
                                                      ", which has no parameters yet: rank 0 sends them first"));
  }
  const std::vector<int>& of_rank = contributors_of_[from.rank];
  if (contribution.node < 0 || contribution.node >= std::ssize(of_rank)) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", from.rank, " sends node ", contribution.node,
                                                   " of its share for bucket ", bucket, " at step ", step,
                                                   ", the share has ", of_rank.size()));
  }
  const int contributor = of_rank[contribution.node];
  ContributeResult result{.accepted = !contributors_[contributor].is_last};
  // The worker has lost the answer with its connection, and asks for it again.
  if (step == b.sealed->step() && step >= owned_.first_step()) {
    result.fate = ContributionFate::kDuplicate;
    if (!result.accepted) {
      result.sealed = b.sealed;
      result.answer_to = {from};
    }
    return result;
  }
  if (step != b.sealed->step() + 1) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", from.rank, " contributes to step ", step,
                                                      " of bucket ", bucket, ", step ", b.sealed->step() + 1,
                                                      " is expected"));
  }
  if (b.contributions[contributor].has_value()) {
    // Only where the answer goes may have changed.
    if (!result.accepted && b.wait.Has(from.rank)) b.wait.Add(from, now);
    result.fate = ContributionFate::kDuplicate;
    return result;
  }
  // The contribution is kept, not added: which one is added first depends on the element, not on the order of arrival.
  b.contributions[contributor] = std::move(contribution);
  ++b.here;
  const auto is_here = [&](int one) { return b.contributions[one].has_value(); };
  if (std::all_of(of_rank.begin(), of_rank.end(), is_here)) {
    b.wait.Add(from, now);
    ++contributed_count_[from.rank];
    if (b.wait.count() == 1) ++started_count_;
    result.first_arrival = b.wait.since();
  } else {
    result.first_arrival = b.wait.empty() ? now : b.wait.since();
  }
  if (!release_.Seals(b.here)) return result;
  complete_.push_back(bucket);
  result.fate = ContributionFate::kComplete;
  // One whose turn has not come waits in parts, too: buckets are sealed in the order in which they became complete.
  if (sums_in_parts_ && (complete_.size() > 1 || owned_.slice_element_count(bucket) > kPartElements)) return result;
  BeginSum(bucket);
  SumElements(owned_.slice_element_count(bucket));
  SealedUpdate update = Seal();
  result.fate = ContributionFate::kSealed;
  result.sealed = std::move(update.sealed);
  result.answer_to = std::move(update.answer_to);
  return result;
}

std::optional<SealedUpdate> ContributionSum::SumPart() {
  CHECK(is_summing());
  const int bucket = complete_.front();
  if (summing_ == nullptr) BeginSum(bucket);
  SumElements(std::min(kPartElements, owned_.slice_element_count(bucket) - offset_));
  if (offset_ < owned_.slice_element_count(bucket)) return std::nullopt;
  return Seal();
}

// Returns a buffer that only this bucket refers to, or the memory to update in place.
std::shared_ptr<SealedSlice> ContributionSum::FreeBuffer(int bucket) {
  Bucket& b = buckets_[bucket];
  if (b.in_place != nullptr) return b.in_place;
  // The newest parameters come first: if every answer with them has left, no worker can ask for them again, since all
  // have contributed to the next step. The update then reads and writes one array instead of two.
  for (const bool is_sealed : {true, false}) {
    for (const std::shared_ptr<SealedSlice>& buffer : b.buffers) {
      // The sealed slice has a second reference, `sealed`.
      if ((buffer == b.sealed) != is_sealed || buffer.use_count() != (is_sealed ? 2 : 1)) continue;
      // One of gRPC's threads may have dropped the last other reference after it read the buffer. use_count is a
      // relaxed load: it tells that this reader is gone, but orders nothing. Taking a reference and dropping it is an
      // acquire on the same counter, after which the reader's loads come before our stores. (In libstdc++ the copy that
      // is returned would do, in libc++ it would not.)
      std::shared_ptr<SealedSlice>(buffer).reset();
      return buffer;
    }
  }
  if (std::ssize(b.buffers) == kSliceBuffersMax) {
    // All are in use, as a worker reads slowly. The oldest leaves the pool and lives as long as its readers; it is
    // never the sealed one.
    b.buffers.erase(std::min_element(b.buffers.begin(), b.buffers.end(),
                                     [](const auto& x, const auto& y) { return x->step() < y->step(); }));
  }
  b.buffers.push_back(std::make_shared<SealedSlice>(owned_.slice_element_count(bucket)));
  return b.buffers.back();
}

// Each contribution is read from front to back, in the pieces in which it arrived.
void ContributionSum::BeginSum(int bucket) {
  const Bucket& b = buckets_[bucket];
  for (size_t i = 0; i < contributors_.size(); ++i) sum_.SetInput(static_cast<int>(i), b.contributions[i]->pieces);
  summing_ = FreeBuffer(bucket);
  range_ = 0;
  in_range_ = offset_ = 0;
}

// One pass over the next elements of the slice, in pieces of kPassElements: the sum over all ranks, then the optimizer.
// ForEachRun cuts them where the rank that comes first in the sum changes. Every contribution, the parameters and the
// state are read once.
void ContributionSum::SumElements(int64_t count) {
  const int bucket = complete_.front();
  const std::span<const ElementRange> ranges = owned_.ranges(bucket);
  for (const int64_t end = offset_ + count; offset_ < end;) {
    const ElementRange range = ranges[range_];
    const int64_t begin = range.begin + in_range_;
    const ElementRange part = {begin, std::min(range.end, begin + end - offset_)};
    ForEachRun(part, owned_.element_count(), reduction_, [&](ElementRange run, int first_rank) {
      for (int64_t done = 0; done < run.size(); done += OwnedSlices::kPassElements) {
        UpdatePass(buckets_[bucket], first_rank, std::min(OwnedSlices::kPassElements, run.size() - done));
      }
    });
    in_range_ += part.size();
    if (part.end < range.end) continue;
    ++range_;
    in_range_ = 0;
  }
}

void ContributionSum::UpdatePass(const Bucket& bucket, int first_rank, int64_t count) {
  // The sum of a pass stays in the L1 cache, where the optimizer reads it. Summing the whole slice first would write
  // it to memory and read it back.
  alignas(64) float sum[OwnedSlices::kPassElements];
  alignas(64) float updated[OwnedSlices::kPassElements];
  const std::span<float> part(sum, count);
  sum_.Next(first_rank, part);
  const std::span<float> out = summing_->values_.subspan(offset_, count);
  // In shared memory, parameters before and after are one array: the update goes by way of `updated`, so that it can
  // be written past the caches.
  const bool is_in_place = bucket.in_place != nullptr;
  owned_.Update({.step = bucket.sealed->step() + 1,
                 .bucket = complete_.front(),
                 .offset = offset_,
                 .gradient = part,
                 .parameters_in = bucket.sealed->parameters().subspan(offset_, count),
                 .parameters_out = is_in_place ? std::span(updated, count) : out});
  if (is_in_place) StreamCopy({updated, part.size()}, out);
  offset_ += count;
}

SealedUpdate ContributionSum::Seal() {
  const int bucket = complete_.front();
  complete_.pop_front();
  Bucket& b = buckets_[bucket];
  for (const Contributor& one : contributors_) b.counted_leaves += one.leaves.size();
  summing_->step_ = release_.AnswerTo(b.sealed->step() + 1);
  b.sealed = std::exchange(summing_, nullptr);
  for (auto& contribution : b.contributions) contribution.reset();  // the messages' memory goes back to gRPC
  b.here = 0;
  --started_count_;
  for (int& of_rank : contributed_count_) --of_rank;
  CountStep(bucket);
  return {.bucket = bucket, .sealed = b.sealed, .answer_to = b.wait.Take()};
}

// buckets_behind_ counts the buckets that have not completed step steps_complete_ yet. The seal that brings it to 0
// ends the step, and one pass over all buckets finds the next count. All other seals cost the same for any number of
// buckets.
void ContributionSum::CountStep(int bucket) {
  const int64_t sealed_step = buckets_[bucket].sealed->step();
  if (sealed_step != steps_complete_ || owned_.slice_element_count(bucket) == 0 || --buckets_behind_ > 0) return;
  // Buckets may be several steps ahead of the slowest one, so the next count is taken from all of them.
  int64_t lowest = INT64_MAX;
  for (int b = 0; b < owned_.bucket_count(); ++b) {
    if (owned_.slice_element_count(b) == 0) continue;
    const int64_t step = buckets_[b].sealed->step() + 1;
    buckets_behind_ = step < lowest ? 1 : buckets_behind_ + (step == lowest);
    lowest = std::min(lowest, step);
  }
  steps_complete_ = lowest;
}

void ContributionSum::UpdateInPlace(int bucket, std::span<float> memory, std::shared_ptr<const void> keeper) {
  CHECK(BucketAt(bucket).sealed != nullptr) << "bucket " << bucket << " has no parameters yet";
  CHECK_EQ(std::ssize(memory), owned_.slice_element_count(bucket));
  Bucket& b = buckets_[bucket];
  b.in_place = std::make_shared<SealedSlice>(memory, std::move(keeper));
  b.in_place->step_ = b.sealed->step();
  b.sealed = b.in_place;
  // Answers that are being sent keep their buffers alive by themselves.
  b.buffers.clear();
}

}  // namespace starring
