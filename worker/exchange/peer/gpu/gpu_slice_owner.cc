#include "worker/exchange/peer/gpu/gpu_slice_owner.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/job/layout.h"

namespace starring {
namespace {

int64_t Aligned(int64_t elements) {
  return (elements + Layout::kAlignmentElements - 1) / Layout::kAlignmentElements * Layout::kAlignmentElements;
}

int64_t BytesOf(std::span<const float> floats) { return static_cast<int64_t>(floats.size_bytes()); }

}  // namespace

GpuSliceOwner::GpuSliceOwner(Options options)
    : options_(std::move(options)), memory_(*options_.memory), places_(options_.owned.slices) {
  for (int b = 0; b < places_.bucket_count(); ++b) rows_.push_back(ElementRows::Of(places_.ranges(b)));
}

absl::StatusOr<std::unique_ptr<GpuSliceOwner>> GpuSliceOwner::Create(Options options) {
  CudaDevice& device = *options.device;
  auto owner = absl::WrapUnique(new GpuSliceOwner(std::move(options)));
  for (int i = 0; i < StateVectorCount(owner->options_.owned.optimizer); ++i) {
    ASSIGN_OR_RETURN(owner->state_.emplace_back(), device.Allocate(owner->places_.element_count() * kFloatBytes),
                     "optimizer state");
  }
  ASSIGN_OR_RETURN(owner->math_, device.CreateVectorMath());
  // A bucket has one piece of work under way, and there may be no bucket.
  const int in_flight_max = std::max(1, owner->places_.bucket_count());
  ASSIGN_OR_RETURN(owner->completions_,
                   GpuCompletions::Create(&device, owner->math_.get(), in_flight_max, owner->options_.ring));
  return owner;
}

int64_t GpuSliceOwner::StateBytes(const OptimizerConfig& optimizer, int64_t element_count, int rank_count) {
  return StateVectorCount(optimizer) * Aligned((element_count + rank_count - 1) / rank_count) * kFloatBytes;
}

std::span<float> GpuSliceOwner::State(int vector, ElementRange range) const {
  return {state_[static_cast<size_t>(vector)]->floats() + range.begin, static_cast<size_t>(range.size())};
}

template <class F>
void GpuSliceOwner::ForEachState(int vector, int bucket, F f) const {
  int64_t begin = places_.slice(bucket).begin;
  for (const ElementRange& range : places_.ranges(bucket)) {
    f(State(vector, {begin, begin + range.size()}), range);
    begin += range.size();
  }
}

CudaPeerUpdate GpuSliceOwner::UpdateOf(int64_t step, int bucket) const {
  CudaPeerUpdate update = {.rows = rows_[static_cast<size_t>(bucket)],
                           .element_count = options_.owned.element_count,
                           .learning_rate = LearningRateAt(options_.owned.schedule, step),
                           .update = step + 1};
  for (int i = 0; i < std::ssize(state_); ++i) update.state.push_back(State(i, places_.slice(bucket)));
  return update;
}

CudaPeerUpdate GpuSliceOwner::UpdateFromAll(int64_t step, int bucket) const {
  const int ranks = memory_.rank_count();
  CudaPeerUpdate update = UpdateOf(step, bucket);
  update.reduction = {.order = options_.order, .world_size = ranks};
  update.rank = options_.rank;
  for (int rank = 0; rank < ranks; ++rank) {
    update.gradients[rank] = memory_.gradients(rank).data();
    update.parameters[rank] = memory_.parameters(rank).data();
  }
  return update;
}

int64_t GpuSliceOwner::BeginUpdateFromAll(int64_t step, int bucket) {
  if (rows_[static_cast<size_t>(bucket)].size() > 0) {
    math_->ApplyPeerUpdate(options_.owned.optimizer, UpdateFromAll(step, bucket));
  }
  return completions_->Follow();
}

absl::Status GpuSliceOwner::EnqueueUpdateFromAll(GpuFlags* flags, CudaStream* stream, int slot, int bucket,
                                                 const CudaStepValues* values) const {
  // The kernel reads the step's factors from `values`, so the step does not matter here.
  return flags->Update(stream, slot, bucket, values, options_.owned.optimizer, UpdateFromAll(0, bucket));
}

// Steps count from 0 and updates from 1.
CudaOptimizerScalars GpuSliceOwner::ScalarsOf(int64_t step) const {
  return MakeCudaOptimizerScalars(options_.owned.optimizer, LearningRateAt(options_.owned.schedule, step), step + 1);
}

const float* GpuSliceOwner::Left(From from) const {
  return from == From::kGradient ? memory_.gradients(left()).data() : memory_.parameters(left()).data();
}

CudaPeerHop GpuSliceOwner::HopOf(int bucket, int chunk, From from) const {
  return {.rows = options_.chunks[chunk][bucket],
          .left = Left(from),
          .own = memory_.gradients(options_.rank).data(),
          .out = memory_.parameters(options_.rank).data()};
}

CudaPeerHop GpuSliceOwner::CopyOf(int bucket, int chunk) const {
  return {.rows = options_.chunks[chunk][bucket],
          .left = memory_.parameters(left()).data(),
          .out = memory_.parameters(options_.rank).data()};
}

// To the kernel there are two ranks, with this rank's parameters alone. The order of a sum of two does not matter, and
// a tree's is the same for all elements.
CudaPeerUpdate GpuSliceOwner::UpdateByRing(int64_t step, int bucket, From from) const {
  CudaPeerUpdate update = UpdateOf(step, bucket);
  update.reduction = {.order = SumOrder::kTree, .world_size = 2};
  update.gradients[0] = Left(from);
  update.gradients[1] = memory_.gradients(options_.rank).data();
  update.parameters[0] = update.parameters[1] = memory_.parameters(options_.rank).data();
  return update;
}

int64_t GpuSliceOwner::BeginAdd(int bucket, int chunk, From from) {
  math_->RunPeerHop(HopOf(bucket, chunk, from));
  return completions_->Follow();
}

int64_t GpuSliceOwner::BeginUpdate(int64_t step, int bucket, From from) {
  math_->ApplyPeerUpdate(options_.owned.optimizer, UpdateByRing(step, bucket, from));
  return completions_->Follow();
}

int64_t GpuSliceOwner::BeginCopy(int bucket, int chunk) {
  math_->RunPeerHop(CopyOf(bucket, chunk));
  return completions_->Follow();
}

absl::Status GpuSliceOwner::EnqueueHops(GpuFlags* flags, CudaStream* stream, int slot, int bucket,
                                        const CudaStepValues* values) const {
  const RingSchedule& schedule = flags->schedule();
  RETURN_IF_ERROR(flags->Signal(stream, slot, bucket, 0));
  for (int hop = 0; hop < schedule.hop_count(); ++hop) {
    RETURN_IF_ERROR(flags->AwaitLeft(stream, slot, bucket, hop));
    const int chunk = schedule.ChunkOf(hop);
    const From from = hop == 0 ? From::kGradient : From::kPartialSum;
    if (schedule.Updates(hop)) {
      // The kernel reads the step's factors from `values`, so the step does not matter here.
      RETURN_IF_ERROR(flags->RunUpdate(stream, slot, bucket, hop, hop == 0, values, options_.owned.optimizer,
                                       UpdateByRing(0, bucket, from)));
    } else if (schedule.Copies(hop)) {
      RETURN_IF_ERROR(flags->RunHop(stream, slot, bucket, hop, false, CopyOf(bucket, chunk)));
    } else {
      RETURN_IF_ERROR(flags->RunHop(stream, slot, bucket, hop, hop == 0, HopOf(bucket, chunk, from)));
    }
  }
  return absl::OkStatus();
}

void GpuSliceOwner::CopyParametersIn(std::span<const float> parameters) {
  CHECK_EQ(parameters.size(), own_parameters().size());
  math_->CopyToDevice(parameters.data(), own_parameters().data(), BytesOf(parameters));
  Wait();
}

void GpuSliceOwner::CopyState(int bucket, int vector, std::span<float> out) {
  const std::span<float> state = State(vector, places_.slice(bucket));
  CHECK_EQ(state.size(), out.size());
  math_->CopyToHost(state.data(), out.data(), BytesOf(state));
  Wait();
}

void GpuSliceOwner::CopyStateOut(std::span<const std::span<float>> whole) {
  CHECK_EQ(whole.size(), state_.size());
  for (int i = 0; i < std::ssize(whole); ++i) {
    for (int bucket = 0; bucket < places_.bucket_count(); ++bucket) {
      ForEachState(i, bucket, [&](std::span<float> state, ElementRange range) {
        math_->CopyToHost(state.data(), whole[static_cast<size_t>(i)].data() + range.begin, BytesOf(state));
      });
    }
  }
  Wait();
}

void GpuSliceOwner::CopyStateIn(std::span<const std::span<const float>> whole) {
  CHECK_LE(whole.size(), state_.size());
  for (int i = 0; i < std::ssize(whole); ++i) {
    for (int bucket = 0; bucket < places_.bucket_count(); ++bucket) {
      ForEachState(i, bucket, [&](std::span<float> state, ElementRange range) {
        math_->CopyToDevice(whole[static_cast<size_t>(i)].data() + range.begin, state.data(), BytesOf(state));
      });
    }
  }
  Wait();
}

std::span<float> GpuSliceOwner::Allocate(int64_t) {
  CHECK(false) << "no messages arrive";
  return {};
}
void GpuSliceOwner::Add(std::span<const float>, std::span<float>) { CHECK(false) << "no messages arrive"; }
void GpuSliceOwner::Apply(const ApplyArgs&) { CHECK(false) << "no sums arrive"; }

}  // namespace starring
