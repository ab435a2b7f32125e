#include "worker/cuda_batch_slots.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "absl/memory/memory.h"
#include "common/check.h"
#include "common/status.h"

namespace starring {
namespace {

constexpr int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// A slot's bytes: CudaStepValues, CudaStepResult as it begins, labels, pixels; one copy brings a whole batch. Every
// part begins on a 64-byte boundary.
constexpr int64_t kResultOffset = RoundUp(sizeof(CudaStepValues));
constexpr int64_t kLabelsOffset = kResultOffset + RoundUp(sizeof(CudaStepResult));

}  // namespace

CudaStepResult* CudaBatchSlots::Slot::device_result() const { return At<CudaStepResult>(kResultOffset); }
const int32_t* CudaBatchSlots::Slot::labels() const { return At<const int32_t>(labels_); }
const uint8_t* CudaBatchSlots::Slot::pixels() const { return At<const uint8_t>(pixels_); }

absl::Status CudaBatchSlots::Slot::BeginStep(CudaStream* stream) { return stream->Wait(fed_.get()); }

absl::Status CudaBatchSlots::Slot::EndStep(CudaStream* stream) {
  is_full_ = false;
  runs_ = true;
  return stream->Record(done_.get());
}

absl::Status CudaBatchSlots::Slot::Finish() {
  CHECK(runs_);
  runs_ = false;
  return done_->Wait();
}

absl::StatusOr<std::unique_ptr<CudaBatchSlots>> CudaBatchSlots::Create(const Options& options) {
  auto slots = absl::WrapUnique(new CudaBatchSlots(options));
  RETURN_IF_ERROR(slots->Allocate(), "a batch");
  return slots;
}

CudaBatchSlots::~CudaBatchSlots() {
  if (feed_ != nullptr) (void)feed_->Synchronize();  // buffers end now; there is nobody left to tell an error
}

absl::Status CudaBatchSlots::Allocate() {
  CudaDevice& device = *options_.device;
  ASSIGN_OR_RETURN(feed_, device.CreateStream());
  for (Slot& slot : slots_) {
    slot.labels_ = kLabelsOffset;
    slot.pixels_ = slot.labels_ + RoundUp(options_.batch_max * static_cast<int64_t>(sizeof(int32_t)));
    const int64_t bytes = slot.pixels_ + options_.batch_max * options_.image_values;
    ASSIGN_OR_RETURN(slot.host_, device.AllocatePinned(bytes));
    ASSIGN_OR_RETURN(slot.device_, device.Allocate(bytes));
    ASSIGN_OR_RETURN(slot.result_, device.AllocatePinned(sizeof(CudaStepResult)));
    ASSIGN_OR_RETURN(slot.fed_, device.CreateEvent());
    ASSIGN_OR_RETURN(slot.done_, device.CreateEvent());
    std::memset(slot.host_->data(), 0, static_cast<size_t>(bytes));
  }
  return absl::OkStatus();
}

absl::Status CudaBatchSlots::Fill(Slot& slot, const Batch& batch, const CudaOptimizerScalars& optimizer) {
  CHECK(!slot.runs_);
  const BatchPlan& plan = batch.plan;
  CHECK_LE(std::ssize(plan.samples), options_.batch_max);
  auto* const host = static_cast<std::byte*>(slot.host_->data());
  new (host) CudaStepValues{.step = plan.step,
                            .first_sample = plan.first_sample,
                            .loss_scale = 1.0f / static_cast<float>(plan.global_count),
                            .optimizer = optimizer};
  new (host + kResultOffset) CudaStepResult;
  std::copy(batch.labels.begin(), batch.labels.end(), reinterpret_cast<int32_t*>(host + slot.labels_));
  std::copy(batch.pixels.begin(), batch.pixels.end(), reinterpret_cast<uint8_t*>(host + slot.pixels_));
  RETURN_IF_ERROR(feed_->CopyToDevice(host, slot.device_->data(), slot.pixels_ + std::ssize(batch.pixels)));
  RETURN_IF_ERROR(feed_->Record(slot.fed_.get()));
  slot.plan_ = plan;
  slot.is_full_ = true;
  return absl::OkStatus();
}

}  // namespace starring
