#include "worker/exchange/clipping_owner.h"

#include <algorithm>
#include <cstddef>

#include "absl/memory/memory.h"
#include "common/arithmetic/gradient_norm.h"
#include "common/arithmetic/sum_in_order.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {

absl::StatusOr<std::unique_ptr<ClippingOwner>> ClippingOwner::Create(const JobSpec& job, std::span<float> sums) {
  if (job.optimizer.clip_norm == 0) return nullptr;
  const int64_t element_count = job.layout.element_count();
  // One slice, however the buckets are cut: the state need not move when they change.
  ASSIGN_OR_RETURN(OwnedSlices whole, OwnedSlices::Create({.slices = {{{0, element_count}}},
                                                           .element_count = element_count,
                                                           .first_step = job.first_step,
                                                           .optimizer = job.optimizer,
                                                           .schedule = job.schedule}));
  auto owner = absl::WrapUnique(new ClippingOwner(std::move(whole), job));
  owner->sums_ = sums.empty() ? owner->Allocate(element_count) : sums.first(static_cast<size_t>(element_count));
  return owner;
}

void ClippingOwner::Apply(const ApplyArgs& args) {
  CHECK_EQ(args.sum.size(), args.parameters.size());
  const std::byte* const inputs[] = {std::as_bytes(args.sum).data(), std::as_bytes(args.last).data()};
  // `last` is the right operand, as in OwnedSlices::Apply: the sum has the same bits with and without --clip_norm.
  SumInOrder(std::span(inputs).first(args.last.empty() ? 1 : 2), args.parameters);
}

void ClippingOwner::Update(int64_t round, std::span<float> parameters) {
  CHECK_EQ(parameters.size(), sums_.size());
  // The caller awaits each bucket of a round. The first call updates all of them.
  if (HasUpdated(round)) return;
  CHECK_EQ(round, next_round_);
  ++next_round_;
  const float factor = ClipFactor(clip_norm_, sums_);
  const auto count = static_cast<int64_t>(sums_.size());
  alignas(64) float scaled[OwnedSlices::kPassElements];
  // The sums themselves must not change: the ranks of a host may share them.
  for (int64_t begin = 0; begin < count; begin += OwnedSlices::kPassElements) {
    const ElementRange pass = {begin, std::min(begin + OwnedSlices::kPassElements, count)};
    for (int64_t i = 0; i < pass.size(); ++i) scaled[i] = factor * sums_[static_cast<size_t>(begin + i)];
    owned().Apply({.step = round,
                   .bucket = 0,
                   .range = pass,
                   .sum = std::span(scaled).first(static_cast<size_t>(pass.size())),
                   .last = {},
                   .parameters = parameters.subspan(static_cast<size_t>(begin), static_cast<size_t>(pass.size()))});
  }
}

}  // namespace starring
