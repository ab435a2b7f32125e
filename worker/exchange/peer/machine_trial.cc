#include "worker/exchange/peer/machine_trial.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/job/owned_slices.h"

namespace starring {

absl::StatusOr<std::unique_ptr<MachineTrial>> MachineTrial::Create(Options options) {
  ASSIGN_OR_RETURN(OwnedSlices owned, OwnedSlices::Create({.slices = options.slices,
                                                           .element_count = options.buckets.element_count(),
                                                           .first_step = 0,
                                                           .optimizer = options.optimizer,
                                                           // The gradients are zeros, so any rate does.
                                                           .schedule = {.kind = ScheduleKind::kConstant, .base = 1}}));
  return std::unique_ptr<MachineTrial>(new MachineTrial(std::move(options), std::move(owned)));
}

MachineTrial::MachineTrial(Options options, OwnedSlices owned)
    : options_(std::move(options)),
      parameters_(options_.buckets.element_count()),
      gradient_(options_.own_gradient.empty() ? options_.buckets.element_count() : 0),
      owner_(std::make_unique<HostSliceOwner>(std::move(owned))) {}

absl::StatusOr<double> MachineTrial::Time(MessagePump& pump, absl::FunctionRef<std::unique_ptr<BucketMachine>()> create,
                                          const CollectiveOptions& options) {
  machine_ = create();
  const std::span<const float> gradient = gradient_.empty() ? std::span<const float>(options_.own_gradient) : gradient_;
  std::vector<double> seconds;
  for (int round = 0; round < kWarmUpRounds + kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int b = 0; b < buckets().bucket_count(); ++b) {
      const ElementRange range = buckets().bucket(b);
      const std::span<const float> of_bucket = gradient.subspan(range.begin, range.size());
      for (int node = 0; node + 1 < options_.node_count; ++node) machine_->SubmitNode(round, b, node, of_bucket);
      machine_->Submit(round, b, of_bucket);
    }
    RETURN_IF_ERROR(WaitUntilIdle(pump, options));
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (round >= kWarmUpRounds) seconds.push_back(taken.count());
  }
  // Nothing of it is in flight here, and a rank that is behind finds its messages, or its counts, all the same.
  machine_.reset();
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

absl::Status MachineTrial::WaitUntilIdle(MessagePump& pump, const CollectiveOptions& options) {
  const absl::Status status =
      pump.PumpUntil([&] { return machine_->IsIdle(); }, DeadlineAfter(options.deadline), options.what);
  if (!absl::IsDeadlineExceeded(status) || !status.message().empty()) return status;
  ASSIGN_OR_RETURN(const std::string missing, pump.FindMissing());
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat(options.what, " did not end within ", absl::FormatDuration(options.deadline), ": ", missing));
  pump.Abort(late);
  return late;
}

}  // namespace starring
