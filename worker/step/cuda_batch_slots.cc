#include "worker/step/cuda_batch_slots.h"

#include <new>
#include <utility>

#include "absl/memory/memory.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// A slot's bytes, and a batch's in pinned memory: a header, CudaStepValues and CudaStepResult as it begins, then the
// batch as the loader lays it out.
constexpr int64_t kResultOffset = RoundUp(sizeof(CudaStepValues), kCacheLineBytes);
constexpr int64_t kHeaderBytes = kResultOffset + RoundUp(sizeof(CudaStepResult), kCacheLineBytes);

int64_t BatchBytesMax(const CudaBatchSlots::Options& options) {
  return LayOutBatch(options.batch_max, options.target_bytes, options.image_bytes).size_bytes;
}

}  // namespace

CudaStepResult* CudaBatchSlots::Slot::device_result() const { return At<CudaStepResult>(kResultOffset); }
const void* CudaBatchSlots::Slot::targets() const { return At<const std::byte>(kHeaderBytes); }
const uint32_t* CudaBatchSlots::Slot::samples() const { return At<const uint32_t>(kHeaderBytes); }
const uint8_t* CudaBatchSlots::Slot::stored() const { return At<const uint8_t>(stored_); }

// The step calls this before it launches a graph, and not in a capture: the wait orders this launch after this batch,
// whichever call filled the slot.
absl::Status CudaBatchSlots::Slot::BeginStep(CudaStream* stream) { return stream->Wait(fed_.get()); }

absl::Status CudaBatchSlots::Slot::EndStep(CudaStream* stream) {
  is_full_ = false;
  runs_ = true;
  // The event is recorded outside the graphs, after all segments, so that one event means the whole step.
  return stream->Record(done_.get());
}

absl::Status CudaBatchSlots::Slot::Finish() {
  return Finish([](CudaEvent* done) { return done->Wait(); });
}

absl::Status CudaBatchSlots::Slot::Finish(absl::FunctionRef<absl::Status(CudaEvent*)> wait) {
  CHECK(runs_);
  RETURN_IF_ERROR(wait(done_.get()));
  runs_ = false;
  return absl::OkStatus();
}

CudaBatchSlots::CudaBatchSlots(const Options& options)
    : options_(options), batch_bytes_max_(BatchBytesMax(options)), slots_(static_cast<size_t>(options.count)) {}

int64_t CudaBatchSlots::DeviceBytes(const Options& options) {
  return options.count * (kHeaderBytes + BatchBytesMax(options));
}

absl::StatusOr<std::unique_ptr<CudaBatchSlots>> CudaBatchSlots::Create(const Options& options) {
  // With one slot the next batch could be copied only when the step before it has ended, and the GPU would wait for it.
  CHECK_GE(options.count, 2);
  auto slots = absl::WrapUnique(new CudaBatchSlots(options));
  RETURN_IF_ERROR(slots->AllocateSlots(), "a batch");
  return slots;
}

CudaBatchSlots::~CudaBatchSlots() {
  // The buffers are freed next, so no copy may be in flight. An error has no caller to go to.
  if (feed_ != nullptr) (void)feed_->Synchronize();
}

absl::Status CudaBatchSlots::AllocateSlots() {
  CudaDevice& device = *options_.device;
  // A stream of its own: on the device's stream a batch would wait for the steps that are queued before it.
  ASSIGN_OR_RETURN(feed_, device.CreateStream());
  for (Slot& slot : slots_) {
    ASSIGN_OR_RETURN(slot.device_, device.Allocate(kHeaderBytes + batch_bytes_max_));
    ASSIGN_OR_RETURN(slot.result_, device.AllocatePinned(sizeof(CudaStepResult)));
    ASSIGN_OR_RETURN(slot.fed_, device.CreateEvent());
    ASSIGN_OR_RETURN(slot.done_, device.CreateEvent());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> CudaBatchSlots::Allocate(int64_t size_bytes) {
  // The loader calls this when it is created, once for each of its batches. Fill will write the header to the room in
  // front of the pointer that the loader gets. The header is whole cache lines long, so that the batch begins on one.
  CHECK_LE(size_bytes, batch_bytes_max_);  // a slot has no more room
  ASSIGN_OR_RETURN(auto buffer, options_.device->AllocatePinned(kHeaderBytes + size_bytes));
  return static_cast<std::byte*>(host_.emplace_back(std::move(buffer))->data()) + kHeaderBytes;
}

std::byte* CudaBatchSlots::HeaderOf(const Batch& batch) const {
  // This is a search, because a batch knows its memory, but not its number. There are prefetch_depth + 1 buffers.
  for (const auto& buffer : host_) {
    auto* const header = static_cast<std::byte*>(buffer->data());
    if (header + kHeaderBytes == batch.memory) return header;
  }
  return nullptr;
}

absl::Status CudaBatchSlots::Fill(Slot& slot, const Batch& batch, const CudaOptimizerScalars& optimizer) {
  // A step that still runs on the slot would read half of the old batch and half of the new one.
  CHECK(!slot.runs_);
  const BatchPlan& plan = batch.plan;
  std::byte* const header = HeaderOf(batch);
  CHECK(header != nullptr);
  // The loss is scaled by the global batch and not by this rank's, so that the exchange only adds contributions.
  new (header) CudaStepValues{.step = plan.step,
                              .epoch = plan.epoch,
                              .first_sample = plan.first_sample,
                              .loss_scale = 1.0f / static_cast<float>(plan.global_count),
                              .optimizer = optimizer};
  // The result as it begins travels with the batch: a kernel writes non_finite_element only if it finds one, so it must
  // be -1 before every step, and a memset would be one more node of the graph.
  new (header + kResultOffset) CudaStepResult;
  // The copy ends with the last sample that exists: the batch at the end of an epoch may be smaller than its memory.
  // Either the samples' numbers follow the header, or targets and then values.
  int64_t size_bytes = kHeaderBytes + static_cast<int64_t>(batch.samples.size_bytes());
  if (batch.stored.data() != nullptr) {
    // Slot and pinned memory have one layout, so the offset is the same in both. A graph that was captured on the slot
    // holds the address; it stays right, because a loader lays all of its batches out alike.
    slot.stored_ = reinterpret_cast<const std::byte*>(batch.stored.data()) - header;
    size_bytes = slot.stored_ + std::ssize(batch.stored);
  }
  RETURN_IF_ERROR(feed_->CopyToDevice(header, slot.device_->data(), size_bytes));
  RETURN_IF_ERROR(feed_->Record(slot.fed_.get()));
  last_fed_ = slot.fed_.get();
  slot.plan_ = plan;
  slot.is_full_ = true;
  return absl::OkStatus();
}

// The last copy is enough: copies on one stream end in their order.
absl::Status CudaBatchSlots::AwaitCopy() { return last_fed_ == nullptr ? absl::OkStatus() : last_fed_->Wait(); }

}  // namespace starring
