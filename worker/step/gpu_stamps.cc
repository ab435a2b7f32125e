#include "worker/step/gpu_stamps.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/memory/memory.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// A thread that sleeps until the GPU has stamped wakes up late at times.
constexpr int kComparisons = 8;

// A clock that moves in steps may show a later moment as an earlier one, if they are not of one multiprocessor.
uint64_t Elapsed(uint64_t begin, uint64_t end) { return end > begin ? end - begin : 0; }

}  // namespace

GpuStamps::GpuStamps(CudaDevice* device, int slot_count, int segment_max)
    : device_(*device), segment_max_(segment_max), of_(static_cast<size_t>(slot_count)) {}

absl::StatusOr<std::unique_ptr<GpuStamps>> GpuStamps::Create(CudaDevice* device, int slot_count, int segment_max) {
  auto stamps = absl::WrapUnique(new GpuStamps(device, slot_count, segment_max));
  const int64_t count = 2 * int64_t{slot_count} * segment_max + 1;
  ASSIGN_OR_RETURN(stamps->memory_, device->AllocatePinned(count * static_cast<int64_t>(sizeof(uint64_t))), "stamps");
  auto* next = static_cast<uint64_t*>(stamps->memory_->data());
  std::uninitialized_fill_n(next, count, uint64_t{0});
  for (Slot& slot : stamps->of_) {
    slot.begins = next;
    slot.ends = next + segment_max;
    next += 2 * segment_max;
  }
  stamps->clock_ = next;
  return stamps;
}

absl::Status GpuStamps::Begin(const StepTimer* timer, TraceTrack* track) {
  timer_ = timer;
  track_ = track;
  return CompareClocks();
}

// The stamp was written between two readings of the host's clock. The pair with the least time in between decides.
absl::Status GpuStamps::CompareClocks() {
  if (track_ == nullptr) return absl::OkStatus();
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kComparisons; ++i) {
    const int64_t before = TraceNow();
    device_.Stamp(clock_);
    RETURN_IF_ERROR(device_.Synchronize());
    const int64_t after = TraceNow();
    if (after - before >= least_ns) continue;
    least_ns = after - before;
    host_ahead_ns_ = before + least_ns / 2 - static_cast<int64_t>(*clock_);
  }
  return absl::OkStatus();
}

void GpuStamps::BeginStep(int slot) {
  slot_ = slot;
  begun_ = 0;
}

void GpuStamps::BeginSegment() {
  CHECK_LT(begun_, segment_max_);
  device_.Stamp(of_[static_cast<size_t>(slot_)].begins + begun_++);
}

void GpuStamps::EndSegment() {
  CHECK_GE(begun_, 1);
  device_.Stamp(of_[static_cast<size_t>(slot_)].ends + begun_ - 1);
}

void GpuStamps::Trace(const char* name, uint64_t begin, uint64_t end, int64_t step) const {
  if (track_ == nullptr) return;
  const auto on_host = [this](uint64_t ns) { return static_cast<int64_t>(ns) + host_ahead_ns_; };
  // A span must not end before it begins.
  track_->Add(
      {.name = name, .begin_ns = on_host(begin), .end_ns = on_host(std::max(begin, end)), .labels = {.step = step}});
}

void GpuStamps::Finish(int slot_number, int64_t step) {
  const Slot& slot = of_[static_cast<size_t>(slot_number)];
  const bool is_measured = last_end_ != 0 && !timer_->is_warming_up();
  uint64_t exposed_ns = 0;
  for (int i = 0; i < slot.ran; ++i) {
    if (last_end_ != 0) {
      exposed_ns += Elapsed(last_end_, slot.begins[i]);
      Trace("exposed exchange", last_end_, slot.begins[i], step);
    }
    Trace("compute", slot.begins[i], slot.ends[i], step);
    last_end_ = slot.ends[i];
  }
  if (is_measured && slot.ran > 0) exposed_ms_.push_back(static_cast<float>(1e-6 * static_cast<double>(exposed_ns)));
}

absl::Status GpuStamps::Settle() {
  last_end_ = 0;
  // Two clocks drift apart in an epoch.
  return CompareClocks();
}

}  // namespace starring
