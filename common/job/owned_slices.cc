#include "common/job/owned_slices.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/sum_in_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace starring {
namespace {

using Ranges = std::vector<ElementRange>;

// There are two checks: first every bucket by itself, whose ranges must ascend, then all ranges together.
absl::Status ValidateSlices(const std::vector<Ranges>& slices, int64_t element_count) {
  Ranges all;
  for (size_t b = 0; b < slices.size(); ++b) {
    for (size_t i = 0; i < slices[b].size(); ++i) {
      const ElementRange& range = slices[b][i];
      if (range.begin < 0 || range.end < range.begin || range.end > element_count ||
          (i > 0 && range.begin < slices[b][i - 1].end)) {
        return absl::InvalidArgumentError(absl::StrCat("range ", i, " of bucket ", b, " is [", range.begin, ", ",
                                                       range.end, "), ranges ascend inside [0, ", element_count, ")"));
      }
      if (range.size() > 0) all.push_back(range);
    }
  }
  // An element in two slices would be updated twice a step. Sorted by position, such slices are neighbours.
  std::sort(all.begin(), all.end(), [](const ElementRange& a, const ElementRange& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].begin < all[i - 1].end) {
      return absl::InvalidArgumentError(absl::StrCat("element ", all[i].begin, " is owned in two buckets"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateOptions(const OwnedSlices::Options& options) {
  const auto between = [](const char* name, int64_t value, int64_t low, int64_t high) {
    if (low <= value && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", it must be ", low, " to ", high));
  };
  RETURN_IF_ERROR(between("bucket count", std::ssize(options.slices), 1, kBucketCountMax));
  RETURN_IF_ERROR(between("element_count", options.element_count, 1, kElementCountMax));
  // The bound is one less than the largest number, because the optimizer counts its updates from 1: step + 1 must not
  // overflow.
  RETURN_IF_ERROR(between("first_step", options.first_step, 0, INT64_MAX - 1));
  RETURN_IF_ERROR(ValidateOptimizer(options.optimizer));
  RETURN_IF_ERROR(ValidateSchedule(options.schedule));
  return ValidateSlices(options.slices, options.element_count);
}

}  // namespace

absl::StatusOr<OwnedSlices> OwnedSlices::Create(Options options) {
  RETURN_IF_ERROR(ValidateOptions(options), "owned slices");
  return OwnedSlices(std::move(options));
}

OwnedSlices::OwnedSlices(Options options)
    : options_(std::move(options)),
      places_(options_.slices),
      progress_(options_.slices.size(), {.step = options_.first_step}) {
  for (int i = 0; i < StateVectorCount(options_.optimizer); ++i) state_.emplace_back(places_.element_count());
}

OwnedSlices::Piece OwnedSlices::Begin(int64_t step, int bucket, int64_t offset, int64_t count) {
  const int64_t slice_count = slice_element_count(bucket);
  // The step is checked, though callers count steps themselves: an update with another step's learning rate would go
  // unnoticed.
  CHECK_EQ(step, progress_[bucket].step) << "in bucket " << bucket;
  CHECK(offset >= 0 && offset + count <= slice_count) << offset << " in bucket " << bucket;
  Piece piece = {.update = step + 1, .learning_rate = LearningRateAt(options_.schedule, step)};
  CHECK_LE(state_.size(), piece.state.size());
  for (size_t i = 0; i < state_.size(); ++i) {
    piece.state[i] = state(bucket, static_cast<int>(i)).subspan(offset, count);
  }
  return piece;
}

void OwnedSlices::Optimize(const Piece& piece, int64_t begin, std::span<const float> gradient,
                           std::span<const float> parameters_in, std::span<float> parameters_out) {
  std::array<std::span<float>, 2> part;
  for (size_t i = 0; i < state_.size(); ++i) part[i] = piece.state[i].subspan(begin, gradient.size());
  ApplyOptimizer(options_.optimizer, {.learning_rate = piece.learning_rate,
                                      .update = piece.update,
                                      .gradient = gradient,
                                      .parameters_in = parameters_in,
                                      .parameters_out = parameters_out,
                                      .state = std::span(part).first(state_.size())});
}

void OwnedSlices::End(int bucket, int64_t count) {
  const int64_t slice_count = slice_element_count(bucket);
  Progress& progress = progress_[bucket];
  // Pieces come in any order, and there may be one or thousands of them, so their lengths tell when the step is over.
  // The thread of the last piece ends it: the others have looked at the step before.
  const int64_t updated = std::atomic_ref(progress.updated_count).fetch_add(count, std::memory_order_acq_rel) + count;
  // Elements are not marked one by one, so only a sum that exceeds the slice shows that a piece came twice.
  CHECK_LE(updated, slice_count) << "a piece of bucket " << bucket << " was applied twice";
  if (updated < slice_count) return;
  progress.updated_count = 0;
  ++progress.step;
}

void OwnedSlices::Update(const SlicePiece& piece) {
  const int64_t count = std::ssize(piece.gradient);
  CHECK_EQ(std::ssize(piece.parameters_in), count);
  CHECK_EQ(std::ssize(piece.parameters_out), count);
  Optimize(Begin(piece.step, piece.bucket, piece.offset, count), 0, piece.gradient, piece.parameters_in,
           piece.parameters_out);
  End(piece.bucket, count);
}

void OwnedSlices::Apply(const ApplyArgs& args) {
  const int64_t count = args.range.size();
  CHECK_EQ(std::ssize(args.sum), count);
  if (!args.last.empty()) CHECK_EQ(std::ssize(args.last), count);
  CHECK_EQ(std::ssize(args.parameters), count);
  const int64_t offset = places_.OffsetOf(args.bucket, args.range);
  CHECK_GE(offset, 0) << "[" << args.range.begin << ", " << args.range.end << ") is not owned in bucket "
                      << args.bucket;
  const Piece piece = Begin(args.step, args.bucket, offset, count);
  if (args.last.empty()) {
    Optimize(piece, 0, args.sum, args.parameters, args.parameters);
    return End(args.bucket, count);
  }
  // The last addend is added piece by piece, so that the sum is still in the L1 cache when the optimizer reads it.
  alignas(64) float sum[kPassElements];
  // `sum` is on the stack: 4 KiB, which every pass uses again.
  for (int64_t begin = 0; begin < count; begin += kPassElements) {
    const std::span<float> part(sum, std::min(kPassElements, count - begin));
    const std::byte* const inputs[] = {std::as_bytes(args.sum.subspan(begin)).data(),
                                       std::as_bytes(args.last.subspan(begin)).data()};
    // `last` is the right operand: in reduction order an owner's own contribution comes last
    // (common/arithmetic/reduction_order.h).
    SumInOrder(inputs, part);
    const std::span<float> parameters = args.parameters.subspan(begin, part.size());
    Optimize(piece, begin, part, parameters, parameters);
  }
  End(args.bucket, count);
}

std::span<float> OwnedSlices::state(int bucket, int vector) {
  CHECK(0 <= vector && vector < std::ssize(state_)) << vector;
  return state_[vector].span().subspan(places_.slice(bucket).begin, places_.slice(bucket).size());
}

std::span<const float> OwnedSlices::state(int bucket, int vector) const {
  CHECK(0 <= vector && vector < std::ssize(state_)) << vector;
  return state_[vector].span().subspan(places_.slice(bucket).begin, places_.slice(bucket).size());
}

void OwnedSlices::CopyStateOut(std::span<const std::span<float>> whole) const {
  CHECK_EQ(whole.size(), state_.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK_EQ(whole[i].size(), options_.element_count);
    for (int b = 0; b < bucket_count(); ++b) {
      // A slice's state is contiguous; its elements are not, in a ring.
      const float* from = state(b, static_cast<int>(i)).data();
      for (const ElementRange& range : ranges(b)) {
        std::copy_n(from, range.size(), whole[i].begin() + range.begin);
        from += range.size();
      }
    }
  }
}

// This is CopyStateOut the other way round. The state of gaps and foreign elements in `whole` is not read.
void OwnedSlices::CopyStateIn(std::span<const std::span<const float>> whole) {
  CHECK_EQ(whole.size(), state_.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK_EQ(whole[i].size(), options_.element_count);
    for (int b = 0; b < bucket_count(); ++b) {
      float* to = state(b, static_cast<int>(i)).data();
      for (const ElementRange& range : ranges(b)) {
        std::copy_n(whole[i].begin() + range.begin, range.size(), to);
        to += range.size();
      }
    }
  }
}

}  // namespace starring
