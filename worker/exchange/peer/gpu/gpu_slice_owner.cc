#include "worker/exchange/peer/gpu/gpu_slice_owner.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/job/layout.h"
#include "common/job/slice_places.h"

namespace starring {
namespace {

int64_t Aligned(int64_t elements) {
  return (elements + Layout::kAlignmentElements - 1) / Layout::kAlignmentElements * Layout::kAlignmentElements;
}

int64_t BytesOf(std::span<const float> floats) { return static_cast<int64_t>(floats.size_bytes()); }

}  // namespace

GpuSliceOwner::GpuSliceOwner(Options options) : options_(std::move(options)), memory_(*options_.memory) {
  const SlicePlaces places(options_.owned.slices);
  state_elements_ = places.element_count();
  for (int b = 0; b < places.bucket_count(); ++b) {
    std::vector<Part>& parts = parts_.emplace_back();
    int64_t begin = places.slice(b).begin;
    for (const ElementRange& range : places.ranges(b)) {
      parts.push_back({.range = range, .state_begin = begin});
      begin += range.size();
    }
  }
}

absl::StatusOr<std::unique_ptr<GpuSliceOwner>> GpuSliceOwner::Create(Options options) {
  CudaDevice& device = *options.device;
  auto owner = absl::WrapUnique(new GpuSliceOwner(std::move(options)));
  for (int i = 0; i < StateVectorCount(owner->options_.owned.optimizer); ++i) {
    ASSIGN_OR_RETURN(owner->state_.emplace_back(), device.Allocate(owner->state_elements_ * kFloatBytes),
                     "optimizer state");
  }
  ASSIGN_OR_RETURN(owner->math_, device.CreateVectorMath());
  // A bucket has one piece of work under way, and there may be no bucket.
  const int in_flight_max = std::max(1, static_cast<int>(owner->parts_.size()));
  ASSIGN_OR_RETURN(owner->completions_,
                   GpuCompletions::Create(&device, owner->math_.get(), in_flight_max, owner->options_.ring));
  return owner;
}

int64_t GpuSliceOwner::StateBytes(const OptimizerConfig& optimizer, int64_t element_count, int rank_count) {
  return StateVectorCount(optimizer) * Aligned((element_count + rank_count - 1) / rank_count) * kFloatBytes;
}

std::span<float> GpuSliceOwner::State(const Part& part, int vector) const {
  const std::span<float> all(state_[static_cast<size_t>(vector)]->floats(), static_cast<size_t>(state_elements_));
  return all.subspan(static_cast<size_t>(part.state_begin), static_cast<size_t>(part.range.size()));
}

CudaPeerUpdate GpuSliceOwner::UpdateOf(int64_t step, const Part& part) const {
  CudaPeerUpdate update = {.range = part.range,
                           .element_count = options_.owned.element_count,
                           .learning_rate = LearningRateAt(options_.owned.schedule, step),
                           .update = step + 1};
  for (int i = 0; i < std::ssize(state_); ++i) update.state.push_back(State(part, i));
  return update;
}

int64_t GpuSliceOwner::BeginUpdateFromAll(int64_t step, int bucket) {
  const int ranks = memory_.rank_count();
  for (const Part& part : parts_[static_cast<size_t>(bucket)]) {
    CudaPeerUpdate update = UpdateOf(step, part);
    update.reduction = {.order = options_.order, .world_size = ranks};
    update.rank = options_.rank;
    for (int rank = 0; rank < ranks; ++rank) {
      update.gradients[rank] = memory_.gradients(rank).data();
      update.parameters[rank] = memory_.parameters(rank).data();
    }
    math_->ApplyPeerUpdate(options_.owned.optimizer, update);
  }
  return completions_->Follow();
}

const float* GpuSliceOwner::Left(From from) const {
  return from == From::kGradient ? memory_.gradients(left()).data() : memory_.parameters(left()).data();
}

int64_t GpuSliceOwner::BeginAdd(std::span<const ElementRange> ranges, From from) {
  const float* const gradient = memory_.gradients(options_.rank).data();
  for (const ElementRange& range : ranges) {
    math_->Add(Left(from) + range.begin, gradient + range.begin, own_parameters().data() + range.begin, range.size());
  }
  return completions_->Follow();
}

// To the kernel there are two ranks, with this rank's parameters alone. The order of a sum of two does not matter.
int64_t GpuSliceOwner::BeginUpdate(int64_t step, int bucket, From from) {
  for (const Part& part : parts_[static_cast<size_t>(bucket)]) {
    CudaPeerUpdate update = UpdateOf(step, part);
    update.reduction = {.order = SumOrder::kChain, .world_size = 2};
    update.gradients[0] = Left(from);
    update.gradients[1] = memory_.gradients(options_.rank).data();
    update.parameters[0] = update.parameters[1] = own_parameters().data();
    math_->ApplyPeerUpdate(options_.owned.optimizer, update);
  }
  return completions_->Follow();
}

int64_t GpuSliceOwner::BeginCopy(std::span<const ElementRange> ranges) {
  for (const ElementRange& range : ranges) {
    math_->CopyOnDevice(memory_.parameters(left()).data() + range.begin, own_parameters().data() + range.begin,
                        range.size() * kFloatBytes);
  }
  return completions_->Follow();
}

void GpuSliceOwner::CopyParametersIn(std::span<const float> parameters) {
  CHECK_EQ(parameters.size(), own_parameters().size());
  math_->CopyToDevice(parameters.data(), own_parameters().data(), BytesOf(parameters));
  Wait();
}

void GpuSliceOwner::CopyState(int bucket, int vector, std::span<float> out) {
  int64_t at = 0;
  for (const Part& part : parts_[static_cast<size_t>(bucket)]) {
    math_->CopyToHost(State(part, vector).data(), out.data() + at, BytesOf(State(part, vector)));
    at += part.range.size();
  }
  CHECK_EQ(at, std::ssize(out));
  Wait();
}

void GpuSliceOwner::CopyStateOut(std::span<const std::span<float>> whole) {
  CHECK_EQ(whole.size(), state_.size());
  for (int i = 0; i < std::ssize(whole); ++i) {
    for (const std::vector<Part>& parts : parts_) {
      for (const Part& part : parts) {
        const std::span<float> state = State(part, i);
        math_->CopyToHost(state.data(), whole[static_cast<size_t>(i)].data() + part.range.begin, BytesOf(state));
      }
    }
  }
  Wait();
}

void GpuSliceOwner::CopyStateIn(std::span<const std::span<const float>> whole) {
  CHECK_LE(whole.size(), state_.size());
  for (int i = 0; i < std::ssize(whole); ++i) {
    for (const std::vector<Part>& parts : parts_) {
      for (const Part& part : parts) {
        const std::span<float> state = State(part, i);
        math_->CopyToDevice(whole[static_cast<size_t>(i)].data() + part.range.begin, state.data(), BytesOf(state));
      }
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
