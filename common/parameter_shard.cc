#include "common/parameter_shard.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/piece_sum.h"
#include "common/arithmetic/reduction_order.h"
#include "common/arithmetic/stream_copy.h"
#include "common/arithmetic/sum_in_order.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"

namespace starring {
namespace {

// The sum of so many elements is made in a buffer that stays in the L1 cache, where the optimizer reads it at once.
// Half as many cost a tenth when everything is in the L2 cache, twice as many a tenth when nothing is
// (bench/common_bench.cc).
constexpr int64_t kPassElements = 1024;

using Ranges = std::vector<ElementRange>;

// Times the sum and the update of one pass in kPassesPerTimed: reading the clock costs a tenth of a pass.
class PassClock {
 public:
  explicit PassClock(SumShare share) : is_on_(share == SumShare::kMeasured) {}
  void BeginPass() {
    is_timed_ = is_on_ && pass_++ % kPassesPerTimed == 0;
    if (is_timed_) mark_ = Clock::now();
  }
  void EndSum() {
    if (is_timed_) sum_ += Lap();
  }
  void EndPass() {
    if (is_timed_) update_ += Lap();
  }
  double sum_share() const {
    const auto all = static_cast<double>((sum_ + update_).count());
    return all > 0 ? static_cast<double>(sum_.count()) / all : 0;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kPassesPerTimed = 16;

  Clock::duration Lap() {
    const Clock::time_point now = Clock::now();
    return now - std::exchange(mark_, now);
  }

  const bool is_on_;
  bool is_timed_ = false;
  int64_t pass_ = 0;
  Clock::time_point mark_;
  Clock::duration sum_{0};
  Clock::duration update_{0};
};

int64_t ByteCount(BytePieces pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                         [](int64_t sum, std::span<const std::byte> piece) { return sum + std::ssize(piece); });
}

// REQUIRES: as many bytes as `out` has.
void Gather(BytePieces pieces, std::span<float> out) {
  std::byte* at = reinterpret_cast<std::byte*>(out.data());
  for (const std::span<const std::byte> piece : pieces) at = std::copy(piece.begin(), piece.end(), at);
}

// Neighbours become one range: a ring of one rank owns block after block.
Ranges Merge(const Ranges& ranges) {
  Ranges merged;
  for (const ElementRange& range : ranges) {
    if (range.size() == 0) continue;
    if (!merged.empty() && merged.back().end == range.begin) {
      merged.back().end = range.end;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

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
  std::sort(all.begin(), all.end(), [](const ElementRange& a, const ElementRange& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].begin < all[i - 1].end) {
      return absl::InvalidArgumentError(absl::StrCat("element ", all[i].begin, " is owned in two buckets"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateOptions(const ParameterShard::Options& options) {
  const auto between = [](const char* name, int64_t value, int64_t low, int64_t high) {
    if (low <= value && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", it must be ", low, " to ", high));
  };
  RETURN_IF_ERROR(between("bucket count", std::ssize(options.slices), 1, kBucketCountMax));
  RETURN_IF_ERROR(between("element_count", options.element_count, 1, kElementCountMax));
  RETURN_IF_ERROR(between("world_size", options.world_size, 1, kWorldSizeMax));
  RETURN_IF_ERROR(between("first_step", options.first_step, 0, INT64_MAX - 1));
  RETURN_IF_ERROR(ValidateOptimizer(options.optimizer));
  RETURN_IF_ERROR(ValidateSchedule(options.schedule));
  return ValidateSlices(options.slices, options.element_count);
}

}  // namespace

struct ParameterShard::Bucket {
  // Constant after Create.
  Ranges ranges;
  std::vector<int64_t> offsets;  // of each range in the slice
  int64_t element_count = 0;
  int64_t state_offset = 0;  // in every state vector of the shard

  std::mutex mutex;
  int64_t step = 0;  // in progress

  // Star. `arrived` and `sum` get their length with the first parameters: a ring's shard does without them.
  struct Arrival {
    bool is_here = false;
    Contribution contribution;
  };
  std::vector<Arrival> arrived;
  int arrived_count = 0;
  absl::Time first_arrival = absl::InfiniteFuture();
  PieceSum sum;
  std::shared_ptr<const SealedSlice> sealed;
  std::vector<std::shared_ptr<SealedSlice>> buffers;  // the sealed one among them; at most kSliceBuffersMax
  std::shared_ptr<SealedSlice> in_place;              // if not null, it is sealed, and there are no buffers

  // Ring and local.
  int64_t applied_count = 0;  // elements of the step in progress

  int64_t OffsetOf(ElementRange piece) const;
  std::shared_ptr<SealedSlice> FreeBuffer();
  void CloseStep();
};

// Where `piece` begins in the slice; -1 if it is empty or does not lie inside one owned range.
int64_t ParameterShard::Bucket::OffsetOf(ElementRange piece) const {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), piece.begin,
                                      [](int64_t element, const ElementRange& range) { return element < range.begin; });
  if (after == ranges.begin() || piece.size() <= 0) return -1;
  const ElementRange& owned = *std::prev(after);
  return piece.end <= owned.end ? offsets[&owned - ranges.data()] + piece.begin - owned.begin : -1;
}

// A buffer that nobody but this bucket holds, or the memory to update in place.
std::shared_ptr<SealedSlice> ParameterShard::Bucket::FreeBuffer() {
  if (in_place != nullptr) return in_place;
  for (const std::shared_ptr<SealedSlice>& buffer : buffers) {
    if (buffer.use_count() != 1) continue;
    // use_count is a relaxed load: it tells that the last reader is gone, yet orders nothing. Taking a reference and
    // dropping it is an acquire on the same counter, after which that reader's loads lie before our stores. (In
    // libstdc++ the copy that is returned would do, in libc++ it would not.)
    std::shared_ptr<SealedSlice>(buffer).reset();
    return buffer;
  }
  if (std::ssize(buffers) == kSliceBuffersMax) {
    // All are held. The oldest stays with its holders and leaves the pool; it is never the sealed one.
    buffers.erase(std::min_element(buffers.begin(), buffers.end(),
                                   [](const auto& a, const auto& b) { return a->step() < b->step(); }));
  }
  buffers.push_back(std::make_shared<SealedSlice>(element_count));
  return buffers.back();
}

void ParameterShard::Bucket::CloseStep() {
  for (Arrival& arrival : arrived) arrival = {};
  arrived_count = 0;
  first_arrival = absl::InfiniteFuture();
  applied_count = 0;
  ++step;
}

ParameterShard::ParameterShard(Options options)
    : options_(std::move(options)), state_count_(StateVectorCount(options_.optimizer)) {
  int64_t owned_count = 0;
  for (const Ranges& slice : options_.slices) {
    auto bucket = std::make_unique<Bucket>();
    bucket->ranges = Merge(slice);
    for (const ElementRange& range : bucket->ranges) {
      bucket->offsets.push_back(bucket->element_count);
      bucket->element_count += range.size();
    }
    bucket->state_offset = owned_count;
    bucket->step = options_.first_step;
    // A bucket's state starts on a cache line of its own: no two threads write to one.
    owned_count += (bucket->element_count + Layout::kAlignmentElements - 1) / Layout::kAlignmentElements *
                   Layout::kAlignmentElements;
    buckets_.push_back(std::move(bucket));
  }
  for (int i = 0; i < state_count_; ++i) state_.emplace_back(owned_count);
}

ParameterShard::~ParameterShard() = default;

absl::StatusOr<std::unique_ptr<ParameterShard>> ParameterShard::Create(Options options) {
  RETURN_IF_ERROR(ValidateOptions(options), "parameter shard");
  return std::unique_ptr<ParameterShard>(new ParameterShard(std::move(options)));
}

int ParameterShard::bucket_count() const { return static_cast<int>(buckets_.size()); }

int64_t ParameterShard::slice_element_count(int bucket) const {
  CHECK_OK(CheckBucket(bucket));
  return buckets_[bucket]->element_count;
}

int64_t ParameterShard::step() const {
  int64_t lowest = INT64_MAX;
  for (const auto& bucket : buckets_) {
    if (bucket->element_count == 0) continue;
    std::lock_guard lock(bucket->mutex);
    lowest = std::min(lowest, bucket->step);
  }
  return lowest == INT64_MAX ? options_.first_step : lowest;
}

absl::Status ParameterShard::CheckBucket(int bucket) const {
  if (0 <= bucket && bucket < bucket_count()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("bucket ", bucket, " does not exist, there are ", bucket_count(),
                                                 ": start all processes with the same flags"));
}

absl::Status ParameterShard::SetParameters(int bucket, BytePieces parameters) {
  RETURN_IF_ERROR(CheckBucket(bucket));
  Bucket& b = *buckets_[bucket];
  const int64_t byte_count = b.element_count * static_cast<int64_t>(sizeof(float));
  if (ByteCount(parameters) != byte_count) {
    return absl::InvalidArgumentError(absl::StrCat("bucket ", bucket, " is given ", ByteCount(parameters),
                                                   " bytes of parameters, its slice has ", byte_count,
                                                   ": start all processes with the same flags"));
  }
  std::lock_guard lock(b.mutex);
  RETURN_IF_ERROR(CheckUntouched(bucket, "parameters"));
  if (b.arrived.empty()) {
    b.arrived.resize(options_.world_size);
    b.sum = PieceSum(options_.world_size);
    b.buffers.reserve(kSliceBuffersMax);
  }
  const std::shared_ptr<SealedSlice> buffer = b.FreeBuffer();
  Gather(parameters, buffer->values_);
  buffer->step_ = options_.first_step - 1;
  b.sealed = buffer;
  return absl::OkStatus();
}

absl::Status ParameterShard::CheckContribution(const Contribution& contribution) const {
  RETURN_IF_ERROR(CheckBucket(contribution.bucket), "worker ", contribution.worker);
  if (contribution.worker < 0 || contribution.worker >= options_.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", contribution.worker, " does not exist, the world size is ", options_.world_size));
  }
  const int64_t wanted = buckets_[contribution.bucket]->element_count * static_cast<int64_t>(sizeof(float));
  const int64_t sent = ByteCount(contribution.pieces);
  if (sent == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "worker ", contribution.worker, " sends ", sent, " bytes for bucket ", contribution.bucket, " at step ",
      contribution.step, ", the slice has ", wanted, ": start worker and server with the same flags"));
}

absl::StatusOr<ContributeResult> ParameterShard::Contribute(Contribution contribution) {
  RETURN_IF_ERROR(CheckContribution(contribution));
  Bucket& b = *buckets_[contribution.bucket];
  std::lock_guard lock(b.mutex);
  if (b.sealed == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", contribution.worker, " contributes to bucket ",
                                                      contribution.bucket, " at step ", contribution.step,
                                                      ", which has no parameters yet: rank 0 sends them first"));
  }
  if (contribution.step == b.step - 1 && contribution.step >= options_.first_step) {
    return ContributeResult{.fate = ContributionFate::kDuplicate, .sealed = b.sealed};
  }
  if (contribution.step != b.step) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", contribution.worker, " contributes to step ",
                                                      contribution.step, " of bucket ", contribution.bucket, ", step ",
                                                      b.step, " is expected"));
  }
  Bucket::Arrival& arrival = b.arrived[contribution.worker];
  if (arrival.is_here) return ContributeResult{.fate = ContributionFate::kDuplicate, .sealed = nullptr};

  arrival = {.is_here = true, .contribution = std::move(contribution)};
  if (b.arrived_count++ == 0) b.first_arrival = options_.now();
  if (b.arrived_count < options_.world_size) return ContributeResult{};
  const double sum_share = SumAndUpdate(b);
  return ContributeResult{.fate = ContributionFate::kSealed, .sealed = b.sealed, .sum_share = sum_share};
}

double ParameterShard::SumAndUpdate(Bucket& b) {
  PassClock clock(options_.sum_share);
  for (int rank = 0; rank < options_.world_size; ++rank) b.sum.SetInput(rank, b.arrived[rank].contribution.pieces);
  const std::shared_ptr<SealedSlice> buffer = b.FreeBuffer();
  const float* in = b.sealed->values_.data();
  float* out = buffer->values_.data();
  alignas(64) float sum[kPassElements];
  alignas(64) float updated[kPassElements];
  int64_t offset = 0;
  for (const ElementRange& range : b.ranges) {
    ForEachRun(range, options_.element_count, options_.world_size, [&](ElementRange run, int first_rank) {
      for (int64_t begin = run.begin; begin < run.end; begin += kPassElements) {
        const std::span<float> part(sum, std::min(kPassElements, run.end - begin));
        clock.BeginPass();
        b.sum.Next(first_rank, part);
        clock.EndSum();
        if (b.in_place == nullptr) {
          Update(b, offset, part, in + offset, out + offset);
        } else {
          Update(b, offset, part, in + offset, updated);
          StreamCopy({updated, part.size()}, {out + offset, part.size()});
        }
        clock.EndPass();
        offset += std::ssize(part);
      }
    });
  }
  buffer->step_ = b.step;
  b.sealed = buffer;
  b.CloseStep();
  return clock.sum_share();
}

void ParameterShard::Update(const Bucket& b, int64_t offset, std::span<const float> gradient, const float* in,
                            float* out) const {
  std::array<std::span<float>, 2> state;
  CHECK_LE(state_count_, state.size());
  for (int i = 0; i < state_count_; ++i) state[i] = StateOf(b, i).subspan(offset, gradient.size());
  ApplyOptimizer(options_.optimizer, {.learning_rate = LearningRateAt(options_.schedule, b.step),
                                      .update = b.step + 1,
                                      .gradient = gradient,
                                      .parameters_in = {in, gradient.size()},
                                      .parameters_out = {out, gradient.size()},
                                      .state = std::span(state).first(state_count_)});
}

std::shared_ptr<const SealedSlice> ParameterShard::Parameters(int bucket) const {
  CHECK_OK(CheckBucket(bucket));
  std::lock_guard lock(buckets_[bucket]->mutex);
  return buckets_[bucket]->sealed;
}

void ParameterShard::UpdateInPlace(int bucket, std::span<float> memory, std::shared_ptr<const void> keeper) {
  CHECK_OK(CheckBucket(bucket));
  Bucket& b = *buckets_[bucket];
  CHECK_EQ(std::ssize(memory), b.element_count);
  std::lock_guard lock(b.mutex);
  CHECK(b.sealed != nullptr) << "bucket " << bucket << " has no parameters yet";
  b.in_place = std::make_shared<SealedSlice>(memory, std::move(keeper));
  b.in_place->step_ = b.sealed->step();
  b.sealed = b.in_place;
  b.buffers.clear();
}

MissingRanks ParameterShard::Missing(int64_t step, int bucket) const {
  CHECK_OK(CheckBucket(bucket));
  Bucket& b = *buckets_[bucket];
  std::lock_guard lock(b.mutex);
  MissingRanks missing;
  if (step < b.step) return missing;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const bool is_here = step == b.step && !b.arrived.empty() && b.arrived[rank].is_here;
    if (!is_here) missing.ranks.push_back(rank);
  }
  if (step == b.step) missing.first_arrival = b.first_arrival;
  return missing;
}

void ParameterShard::Apply(const ApplyArgs& args) {
  CHECK_OK(CheckBucket(args.bucket));
  CHECK_EQ(args.sum.size(), args.range.size());
  if (!args.last.empty()) CHECK_EQ(args.last.size(), args.range.size());
  CHECK_EQ(args.parameters.size(), args.range.size());
  Bucket& b = *buckets_[args.bucket];
  std::lock_guard lock(b.mutex);
  CHECK_EQ(args.step, b.step) << "in bucket " << args.bucket;
  const int64_t offset = b.OffsetOf(args.range);
  CHECK_GE(offset, 0) << "[" << args.range.begin << ", " << args.range.end << ") is not owned in bucket "
                      << args.bucket;
  float* const parameters = args.parameters.data();
  if (args.last.empty()) {
    Update(b, offset, args.sum, parameters, parameters);
  } else {
    alignas(64) float sum[kPassElements];
    for (int64_t begin = 0; begin < args.range.size(); begin += kPassElements) {
      const std::span<float> part(sum, std::min(kPassElements, args.range.size() - begin));
      const std::byte* const inputs[] = {std::as_bytes(args.sum.subspan(begin)).data(),
                                         std::as_bytes(args.last.subspan(begin)).data()};
      SumInOrder(inputs, part);
      Update(b, offset + begin, part, parameters + begin, parameters + begin);
    }
  }
  b.applied_count += args.range.size();
  CHECK_LE(b.applied_count, b.element_count) << "a piece of bucket " << args.bucket << " was applied twice";
  if (b.applied_count == b.element_count) b.CloseStep();
}

absl::Status ParameterShard::CheckUntouched(int bucket, const char* what) const {
  const Bucket& b = *buckets_[bucket];
  if (b.step == options_.first_step && b.arrived_count == 0 && b.applied_count == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("bucket ", bucket, " is given new ", what, " while step ", b.step,
                                                    " is under way: they are set before the first contribution"));
}

std::span<float> ParameterShard::StateOf(const Bucket& b, int vector) const {
  return state_[vector].span().subspan(b.state_offset, b.element_count);
}

void ParameterShard::CopyState(int bucket, int vector, std::span<float> out) const {
  CHECK_OK(CheckBucket(bucket));
  CHECK_EQ(out.size(), buckets_[bucket]->element_count);
  CopyStatePart(bucket, vector, 0, out);
}

void ParameterShard::CopyStatePart(int bucket, int vector, int64_t offset, std::span<float> out) const {
  CHECK_OK(CheckBucket(bucket));
  CHECK(0 <= vector && vector < state_count_) << vector;
  Bucket& b = *buckets_[bucket];
  CHECK(offset >= 0 && offset + std::ssize(out) <= b.element_count) << offset;
  std::lock_guard lock(b.mutex);
  std::ranges::copy(StateOf(b, vector).subspan(offset, out.size()), out.begin());
}

absl::Status ParameterShard::SetState(int bucket, int vector, BytePieces state) {
  RETURN_IF_ERROR(CheckBucket(bucket));
  if (vector < 0 || vector >= state_count_) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state vector ", vector, " does not exist, there are ", state_count_));
  }
  Bucket& b = *buckets_[bucket];
  const int64_t byte_count = b.element_count * static_cast<int64_t>(sizeof(float));
  if (ByteCount(state) != byte_count) {
    return absl::InvalidArgumentError(absl::StrCat("bucket ", bucket, " is given ", ByteCount(state),
                                                   " bytes of optimizer state, its slice has ", byte_count,
                                                   ": start all processes with the same flags"));
  }
  std::lock_guard lock(b.mutex);
  RETURN_IF_ERROR(CheckUntouched(bucket, "optimizer state"));
  Gather(state, StateOf(b, vector));
  return absl::OkStatus();
}

void ParameterShard::CopyStateOut(std::span<const std::span<float>> whole) const {
  CHECK_EQ(whole.size(), state_count_);
  for (const std::span<float> vector : whole) CHECK_EQ(vector.size(), options_.element_count);
  for (const auto& b : buckets_) {
    std::lock_guard lock(b->mutex);
    for (int i = 0; i < state_count_; ++i) {
      const float* from = StateOf(*b, i).data();
      for (const ElementRange& range : b->ranges) {
        std::copy_n(from, range.size(), whole[i].begin() + range.begin);
        from += range.size();
      }
    }
  }
}

void ParameterShard::CopyStateIn(std::span<const std::span<const float>> whole) {
  if (!whole.empty()) CHECK_EQ(whole.size(), state_count_);
  for (const std::span<const float> vector : whole) CHECK_EQ(vector.size(), options_.element_count);
  for (const auto& b : buckets_) {
    std::lock_guard lock(b->mutex);
    for (int i = 0; i < state_count_; ++i) {
      float* to = StateOf(*b, i).data();
      for (const ElementRange& range : b->ranges) {
        if (whole.empty()) {
          std::fill_n(to, range.size(), 0.0f);
        } else {
          std::copy_n(whole[i].begin() + range.begin, range.size(), to);
        }
        to += range.size();
      }
    }
  }
}

}  // namespace starring
