#include "worker/exchange/peer/gpu/gpu_slice_owner.h"

#include "absl/memory/memory.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/job/layout.h"

namespace starring {
namespace {

int64_t BytesOf(std::span<const float> floats) { return static_cast<int64_t>(floats.size_bytes()); }

}  // namespace

GpuSliceOwner::GpuSliceOwner(const GpuMemory* memory, int rank, SumOrder order, const OwnedSlices::Options& options)
    : memory_(*memory), rank_(rank), order_(order), options_(options) {
  for (const std::vector<ElementRange>& slice : options_.slices) {
    CHECK_LE(slice.size(), size_t{1});
    state_offsets_.push_back(state_elements_);
    // A slice's state is aligned as its parameters are.
    const int64_t size = slice.empty() ? 0 : slice.front().size();
    state_elements_ +=
        (size + Layout::kAlignmentElements - 1) / Layout::kAlignmentElements * Layout::kAlignmentElements;
  }
}

absl::StatusOr<std::unique_ptr<GpuSliceOwner>> GpuSliceOwner::Create(CudaDevice* device, const GpuMemory* memory,
                                                                     int rank, SumOrder order,
                                                                     const OwnedSlices::Options& options) {
  auto owner = absl::WrapUnique(new GpuSliceOwner(memory, rank, order, options));
  for (int i = 0; i < StateVectorCount(options.optimizer); ++i) {
    ASSIGN_OR_RETURN(owner->state_.emplace_back(),
                     device->Allocate(owner->state_elements_ * static_cast<int64_t>(sizeof(float))), "optimizer state");
  }
  ASSIGN_OR_RETURN(owner->math_, device->CreateVectorMath());
  return owner;
}

ElementRange GpuSliceOwner::SliceOf(int bucket) const {
  const std::vector<ElementRange>& slice = options_.slices[static_cast<size_t>(bucket)];
  return slice.empty() ? ElementRange{} : slice.front();
}

std::span<float> GpuSliceOwner::State(int bucket, int vector) const {
  const std::span<float> all(state_[static_cast<size_t>(vector)]->floats(), static_cast<size_t>(state_elements_));
  return all.subspan(static_cast<size_t>(state_offsets_[static_cast<size_t>(bucket)]),
                     static_cast<size_t>(SliceOf(bucket).size()));
}

bool GpuSliceOwner::UpdateFromAll(int64_t step, int bucket) {
  const int ranks = memory_.rank_count();
  CudaPeerUpdate update = {.range = SliceOf(bucket),
                           .element_count = options_.element_count,
                           .reduction = {.order = order_, .world_size = ranks},
                           .rank = rank_,
                           .learning_rate = LearningRateAt(options_.schedule, step),
                           .update = step + 1};
  for (int rank = 0; rank < ranks; ++rank) {
    update.gradients[rank] = memory_.gradients(rank).data();
    update.parameters[rank] = memory_.parameters(rank).data();
  }
  for (int i = 0; i < std::ssize(state_); ++i) update.state.push_back(State(bucket, i));
  math_->ApplyPeerUpdate(options_.optimizer, update);
  Wait();
  return true;
}

void GpuSliceOwner::CopyParametersIn(std::span<const float> parameters) {
  CHECK_EQ(parameters.size(), own_parameters().size());
  math_->CopyToDevice(parameters.data(), own_parameters().data(), BytesOf(parameters));
  Wait();
}

void GpuSliceOwner::CopyState(int bucket, int vector, std::span<float> out) {
  const std::span<float> state = State(bucket, vector);
  CHECK_EQ(out.size(), state.size());
  math_->CopyToHost(state.data(), out.data(), BytesOf(state));
  Wait();
}

void GpuSliceOwner::CopyStateOut(std::span<const std::span<float>> whole) {
  CHECK_EQ(whole.size(), state_.size());
  for (int i = 0; i < std::ssize(whole); ++i) {
    for (int b = 0; b < std::ssize(options_.slices); ++b) {
      const std::span<float> state = State(b, i);
      math_->CopyToHost(state.data(), whole[static_cast<size_t>(i)].data() + SliceOf(b).begin, BytesOf(state));
    }
  }
  Wait();
}

void GpuSliceOwner::CopyStateIn(std::span<const std::span<const float>> whole) {
  CHECK_LE(whole.size(), state_.size());
  for (int i = 0; i < std::ssize(whole); ++i) {
    for (int b = 0; b < std::ssize(options_.slices); ++b) {
      const std::span<float> state = State(b, i);
      math_->CopyToDevice(whole[static_cast<size_t>(i)].data() + SliceOf(b).begin, state.data(), BytesOf(state));
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
