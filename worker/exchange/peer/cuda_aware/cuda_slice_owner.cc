#include "worker/exchange/peer/cuda_aware/cuda_slice_owner.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/memory/memory.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

int64_t BytesOf(std::span<const float> floats) { return static_cast<int64_t>(floats.size_bytes()); }

std::span<float> Part(std::span<float> whole, ElementRange range) {
  return whole.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaSliceOwner>> CudaSliceOwner::Create(CudaDevice* device,
                                                                       const OwnedSlices::Options& options,
                                                                       int64_t reserved_elements) {
  auto owner = absl::WrapUnique(new CudaSliceOwner(device, options));
  // Allocate keeps the first error in status_, so the result is looked at once. The object that does arithmetic comes
  // last: it is not needed if there is too little memory.
  owner->parameters_ = owner->Allocate(options.element_count);
  // Apply adds the last contribution to at most one chunk, in the order of the stream.
  owner->sum_ = owner->Allocate(kChunkElementsMax);
  for (int i = 0; i < StateVectorCount(options.optimizer); ++i) {
    owner->state_.push_back(owner->Allocate(owner->places_.element_count()));
  }
  const std::span<float> reserved = owner->Allocate(reserved_elements);
  RETURN_IF_ERROR(owner->status_, reserved_elements > 0 ? "parameters, optimizer state and messages"
                                                        : "parameters and optimizer state");
  owner->reserved_ = reserved;
  ASSIGN_OR_RETURN(owner->math_, device->CreateVectorMath());
  return owner;
}

int64_t CudaSliceOwner::Bytes(const OptimizerConfig& optimizer, const Size& size) {
  const int64_t state = StateVectorCount(optimizer) * size.owned_elements;
  return (size.element_count + kChunkElementsMax + state + size.reserved_elements) *
         static_cast<int64_t>(sizeof(float));
}

std::span<float> CudaSliceOwner::Allocate(int64_t count) {
  if (count <= std::ssize(reserved_)) {
    const std::span<float> part = reserved_.first(count);
    // The next part begins at a cache line, as the reserved memory does.
    reserved_ = reserved_.subspan(std::min<size_t>((count + 15) / 16 * 16, reserved_.size()));
    return part;
  }
  auto buffer = device_.Allocate(count * static_cast<int64_t>(sizeof(float)));
  status_.Update(buffer.status());
  if (!buffer.ok()) return {};
  buffers_.push_back(*std::move(buffer));
  // The buffer is freed with the owner, as SliceOwner promises: MPI may refer to it until the transport is gone.
  return {buffers_.back()->floats(), static_cast<size_t>(count)};
}

// Copies run on the stream of math_ and have ended when these functions return. The caller's host memory may then go
// away.
void CudaSliceOwner::CopyToDevice(std::span<const float> host, std::span<float> device) {
  CHECK_EQ(host.size(), device.size());
  EnqueueRows();
  math_->CopyToDevice(host.data(), device.data(), BytesOf(host));
  Wait();
}

void CudaSliceOwner::CopyToHost(std::span<const float> device, std::span<float> host) {
  CHECK_EQ(host.size(), device.size());
  EnqueueRows();
  math_->CopyToHost(device.data(), host.data(), BytesOf(device));
  Wait();
}

void CudaSliceOwner::Wait() {
  EnqueueRows();
  has_enqueued_ = false;
  status_.Update(math_->Synchronize());
}

void CudaSliceOwner::Complete() {
  if (has_enqueued_) Wait();
}

void CudaSliceOwner::Copy(std::span<const float> from, std::span<float> to) {
  CHECK_EQ(from.size(), to.size());
  has_enqueued_ = true;
  if (rows_.Add(from, to)) return;
  EnqueueRows();
  CHECK(rows_.Add(from, to));
}

void CudaSliceOwner::EnqueueRows() {
  if (rows_.count() == 0) return;
  const CudaRows rows = {.count = rows_.count(), .length = rows_.length(), .step = rows_.step()};
  if (rows.count == 1) {
    math_->CopyOnDevice(rows_.from(), rows_.to(), rows.length * static_cast<int64_t>(sizeof(float)));
  } else if (rows_.packs()) {
    math_->PackRows(rows, rows_.from(), rows_.to());
  } else {
    math_->UnpackRows(rows, rows_.from(), rows_.to());
  }
  rows_ = {};
}

void CudaSliceOwner::QueueKernels(int count) {
  for (int i = 0; i < count; ++i) math_->Add(sum_.data(), sum_.data(), sum_.data(), std::ssize(sum_));
}

void CudaSliceOwner::Add(std::span<const float> own, std::span<float> sum) {
  CHECK_EQ(own.size(), sum.size());
  math_->Add(sum.data(), own.data(), sum.data(), std::ssize(sum));
  has_enqueued_ = true;
}

void CudaSliceOwner::Apply(const ApplyArgs& args) {
  // The CPU adds the last contribution in the optimizer's pass over memory. Here it is a kernel of its own: the bits
  // are the same, and a GPU's memory is fast.
  std::span<const float> gradient = args.sum;
  if (!args.last.empty()) {
    CHECK_EQ(args.last.size(), args.sum.size());
    CHECK_LE(args.sum.size(), sum_.size());
    math_->Add(args.sum.data(), args.last.data(), sum_.data(), std::ssize(args.sum));
    gradient = sum_.first(args.sum.size());
  }
  // No optimizer has more than two state vectors. It is an array, because this runs for each block of each step and
  // must not allocate.
  std::array<std::span<float>, 2> state;
  CHECK_LE(state_.size(), state.size());
  const int64_t offset = places_.OffsetOf(args.bucket, args.range);
  CHECK_GE(offset, 0) << "[" << args.range.begin << ", " << args.range.end << ") is not owned in bucket "
                      << args.bucket;
  const int64_t begin = places_.slice(args.bucket).begin + offset;
  for (size_t i = 0; i < state_.size(); ++i) state[i] = Part(state_[i], {begin, begin + args.range.size()});
  // Each owner computes the learning rate by itself. Updates count from 1, steps from 0.
  math_->ApplyOptimizer(options_.optimizer, {.learning_rate = LearningRateAt(options_.schedule, args.step),
                                             .update = args.step + 1,
                                             .gradient = gradient,
                                             .parameters_in = args.parameters,
                                             .parameters_out = args.parameters,
                                             .state = std::span(state).first(state_.size())});
  has_enqueued_ = true;
}

void CudaSliceOwner::CopyState(int bucket, int vector, std::span<float> out) {
  CopyToHost(Part(state_[static_cast<size_t>(vector)], places_.slice(bucket)), out);
}

template <class F>
void CudaSliceOwner::ForEachState(int vector, F f) {
  for (int bucket = 0; bucket < places_.bucket_count(); ++bucket) {
    std::span<float> state = Part(state_[static_cast<size_t>(vector)], places_.slice(bucket));
    for (const ElementRange& range : places_.ranges(bucket)) {
      f(state.first(static_cast<size_t>(range.size())), range);
      state = state.subspan(static_cast<size_t>(range.size()));
    }
  }
}

// All copies are queued on one stream, and one wait at the end is enough for them. The other elements of `whole` come
// from their owners.
void CudaSliceOwner::CopyStateOut(std::span<const std::span<float>> whole) {
  CHECK_EQ(whole.size(), state_.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    ForEachState(static_cast<int>(i), [&](std::span<const float> state, ElementRange range) {
      math_->CopyToHost(state.data(), Part(whole[i], range).data(), BytesOf(state));
    });
  }
  Wait();
}

void CudaSliceOwner::CopyStateIn(std::span<const std::span<const float>> whole) {
  CHECK_LE(whole.size(), state_.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    ForEachState(static_cast<int>(i), [&](std::span<float> state, ElementRange range) {
      math_->CopyToDevice(whole[i].data() + range.begin, state.data(), BytesOf(state));
    });
  }
  Wait();
}

}  // namespace starring
