#include "worker/step/in_flight_buckets.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/array_passes.h"
#include "common/base/check.h"
#include "common/base/error_origin.h"
#include "common/base/status.h"

namespace starring {

InFlightBuckets::InFlightBuckets(const Options& options)
    : options_(options),
      buckets_(*options.buckets),
      submitted_step_(static_cast<size_t>(buckets_.bucket_count()), -1) {}

void InFlightBuckets::UseBuckets(const BucketMap& buckets) {
  CHECK(step_ < 0 || next_bucket_ == buckets_.bucket_count()) << "step " << step_ << " was not submitted whole";
  for (const int64_t step : submitted_step_) CHECK_LT(step, 0) << "a bucket of step " << step << " is in flight";
  buckets_ = buckets;
  submitted_step_.assign(static_cast<size_t>(buckets_.bucket_count()), -1);
  step_ = -1;
}

absl::Status InFlightBuckets::Await(ElementRange range, StepTimer& timer,
                                    absl::FunctionRef<absl::Status(int)> arrived) {
  if (range.size() == 0) return absl::OkStatus();
  // Forward awaits the buckets that its next layer reads: that time is the exchange's and not forward's.
  const StepPart outer = timer.Enter(options_.exchange_part);
  // Buckets are numbered from the vector's end, in the order in which backward completes them.
  for (int b = buckets_.BucketOf(range.end - 1); b <= buckets_.BucketOf(range.begin); ++b) {
    // Neighbouring layers may share a bucket: then the first of them has awaited it.
    if (submitted_step_[b] < 0) continue;
    if (timer.progress() != nullptr) timer.progress()->set_bucket(b);
    {
      const TraceSpan span(timer.track(), "wait", {.step = submitted_step_[b], .bucket = b});
      RETURN_IF_ERROR(options_.exchange->Await(RoundOf(submitted_step_[b]), b));
    }
    // The mark changes before `arrived`, which may fail: the bucket is no longer the exchange's either way.
    submitted_step_[b] = -1;
    RETURN_IF_ERROR(arrived(b));
  }
  timer.Enter(outer);
  return absl::OkStatus();
}

absl::Status InFlightBuckets::Check(int64_t step, ElementRange range, std::span<const float> gradients) const {
  // The search is one pass over memory that backward has just written. The text is made only for an error.
  const std::optional<int64_t> bad = FindNonFinite(gradients.subspan(range.begin, range.size()));
  if (!bad.has_value()) return absl::OkStatus();
  const int64_t element = range.begin + *bad;
  return NonFinite(step, element, absl::StrCat(gradients[element]));
}

absl::Status InFlightBuckets::NonFinite(int64_t step, int64_t element, const std::string& value,
                                        std::optional<int> rank) const {
  return WithOrigin(absl::InternalError(absl::StrCat(
                        "rank ", rank.value_or(options_.rank), ", step ", step, ": the gradient of tensor ",
                        std::string(options_.layout->TensorAt(element)), " is ", value,
                        ": the step is refused; lower --learning_rate or look at the data, and "
                        "continue from the last checkpoint with --resume")),
                    {.kind = ErrorOrigin::Kind::kNotFinite, .number = step});
}

void InFlightBuckets::SubmitFrom(int64_t begin, int64_t step, std::span<const float> gradients, StepTimer& timer,
                                 ShareNode node) {
  if (step != step_ || node.number != node_) {
    // A bucket that was left out would make the other ranks wait for this one until the deadline.
    CHECK(step_ < 0 || next_bucket_ == buckets_.bucket_count()) << "step " << step_ << " was not submitted whole";
    step_ = step;
    node_ = node.number;
    next_bucket_ = 0;
  }
  const StepPart outer = timer.Enter(options_.exchange_part);
  // A bucket is complete when backward has reached its first element; a layer may complete several buckets or none.
  for (; next_bucket_ < buckets_.bucket_count() && buckets_.bucket(next_bucket_).begin >= begin; ++next_bucket_) {
    const ElementRange range = buckets_.bucket(next_bucket_);
    // The exchange may still be reading its memory, and would send a mixture of two steps.
    CHECK_LT(submitted_step_[next_bucket_], 0) << "bucket " << next_bucket_ << " was not awaited";
    if (timer.progress() != nullptr) timer.progress()->set_bucket(next_bucket_);
    const TraceSpan span(timer.track(), "submit", {.step = step, .bucket = next_bucket_});
    const std::span<const float> gradient = gradients.subspan(range.begin, range.size());
    if (!node.is_last) {
      // The forward of the next node reads the same parameters, and must not wait for new ones.
      options_.exchange->Submit(
          {.round = RoundOf(step), .bucket = next_bucket_, .gradient = gradient, .node = node.number});
      continue;
    }
    // Submit returns at once and reports no error. The mark is what makes Await ask for the bucket, and for its error.
    submitted_step_[next_bucket_] = step;
    options_.exchange->Submit({.round = RoundOf(step), .bucket = next_bucket_, .gradient = gradient});
  }
  timer.Enter(outer);
}

absl::Status CheckFinite(const Layout& layout, int64_t step_count, std::span<const float> vector,
                         const std::string& suffix) {
  const std::optional<int64_t> bad = FindNonFinite(vector);
  if (!bad.has_value()) return absl::OkStatus();
  return WithOrigin(
      absl::InternalError(absl::StrCat(
          "after step ", step_count - 1, " tensor ", std::string(layout.TensorAt(*bad)), suffix, " has ", vector[*bad],
          ": the gradients were finite, their sum or the update was not; nothing of it is saved; lower --learning_rate "
          "or look at the data, and continue from the last checkpoint with --resume")),
      {.kind = ErrorOrigin::Kind::kNotFinite, .number = step_count});
}

}  // namespace starring
