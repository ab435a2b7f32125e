#include "worker/exchange/local/local_exchange.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/owned_slices.h"
#include "worker/exchange/clipping_owner.h"
#include "worker/exchange/slice_owner.h"

namespace starring {
namespace {

class LocalExchange final : public GradientExchange {
 public:
  LocalExchange(TraceTrack* track, LocalUpdates updates) : track_(track), updates_(updates) {}

  absl::Status Start(const JobSpec& job, std::span<float> parameters) override {
    if (job.world_size != 1 || job.rank != 0) {
      return absl::InvalidArgumentError(absl::StrCat("a local exchange has one worker, this is rank ", job.rank, " of ",
                                                     job.world_size, ": use --sync=star or --sync=ring"));
    }
    CHECK_EQ(parameters.size(), job.layout.element_count());
    // On a GPU the training step updates the parameters where they are, and this exchange owns no slice.
    if (updates_ == LocalUpdates::kTrainingStep) return absl::OkStatus();
    ASSIGN_OR_RETURN(std::unique_ptr<ClippingOwner> clipping, ClippingOwner::Create(job));
    clipping_ = clipping.get();
    owner_ = std::move(clipping);
    if (owner_ == nullptr) {
      // This worker owns every bucket as a whole.
      std::vector<std::vector<ElementRange>> slices;
      for (int b = 0; b < job.buckets.bucket_count(); ++b) slices.push_back({job.buckets.bucket(b)});
      ASSIGN_OR_RETURN(OwnedSlices owned, OwnedSlices::Create({.slices = std::move(slices),
                                                               .element_count = job.layout.element_count(),
                                                               .first_step = job.first_step,
                                                               .optimizer = job.optimizer,
                                                               .schedule = job.schedule}));
      owner_ = std::make_unique<HostSliceOwner>(std::move(owned));
    }
    // Empty in a fresh run, whose state begins at zero.
    if (!job.optimizer_state.empty()) owner_->CopyStateIn(job.optimizer_state);
    buckets_ = job.buckets;
    parameters_ = parameters;
    return absl::OkStatus();
  }

  // The optimizer runs here and not in Await: the gradient has just been written and is still in the cache.
  void Submit(const Submission& submission) override {
    CHECK(owner_ != nullptr) << "the training step applies the optimizer";
    CHECK_EQ(submission.node, Submission::kLastNode) << "this exchange takes one gradient a round";
    const ElementRange range = buckets_.bucket(submission.bucket);
    const TraceSpan span(track_, "apply", {.step = submission.round, .bucket = submission.bucket});
    const auto start = std::chrono::steady_clock::now();
    // With --clip_norm the sums are only kept: the factor needs the norm of all buckets.
    const std::span<float> results = clipping_ == nullptr ? parameters_ : clipping_->sums();
    // The update is in place: no other process reads the old parameters, so Await has nothing to wait for.
    ++submitted_count_;
    owner_->Apply({.step = submission.round,
                   .bucket = submission.bucket,
                   .range = range,
                   .sum = submission.gradient,
                   .last = {},
                   .parameters = results.subspan(range.begin, range.size())});
    counters_.optimizer_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  absl::Status Await(int64_t round, int) override {
    if (clipping_ == nullptr) return absl::OkStatus();
    // The norm is that of the whole gradient, so the update of any bucket needs all of them.
    CHECK_EQ(submitted_count_ % buckets_.bucket_count(), 0) << "round " << round << " is not submitted whole";
    const auto start = std::chrono::steady_clock::now();
    clipping_->Update(round, parameters_);
    counters_.optimizer_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return absl::OkStatus();
  }

  // The sum over one worker is what it has. The limit is checked all the same: a caller that exceeds it must fail in a
  // local run, not only in the first run with more workers.
  absl::Status Sum(SumPurpose, std::span<double> values) override {
    CHECK_LE(values.size(), kSumValuesMax);
    return absl::OkStatus();
  }

  absl::Status GatherOptimizerState(std::span<const std::span<float>> state) override {
    CHECK(owner_ != nullptr) << "the training step has the optimizer's state";
    owner_->CopyStateOut(state);
    return absl::OkStatus();
  }

  void Abort(const absl::Status&) override {}
  absl::Status Finish() override { return absl::OkStatus(); }
  ExchangeCounters counters() const override { return counters_; }

 private:
  TraceTrack* const track_;
  const LocalUpdates updates_;
  BucketMap buckets_;
  std::span<float> parameters_;
  std::unique_ptr<HostSliceOwner> owner_;  // from Start on, with kExchange
  ClippingOwner* clipping_ = nullptr;      // the owner, if the job clips
  int64_t submitted_count_ = 0;
  ExchangeCounters counters_;
};

}  // namespace

std::unique_ptr<GradientExchange> CreateLocalExchange(TraceTrack* track, LocalUpdates updates) {
  return std::make_unique<LocalExchange>(track, updates);
}

}  // namespace starring
