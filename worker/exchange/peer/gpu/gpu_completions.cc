#include "worker/exchange/peer/gpu/gpu_completions.h"

#include <utility>

#include "absl/memory/memory.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {

absl::StatusOr<std::unique_ptr<GpuCompletions>> GpuCompletions::Create(CudaDevice* device, CudaVectorMath* math,
                                                                       int in_flight_max, std::function<void()> ring) {
  CHECK_GE(in_flight_max, 1);
  std::vector<std::unique_ptr<CudaEvent>> events;
  for (int i = 0; i < in_flight_max; ++i) {
    ASSIGN_OR_RETURN(events.emplace_back(), device->CreateEvent());
  }
  return absl::WrapUnique(new GpuCompletions(math, std::move(events), std::move(ring)));
}

GpuCompletions::GpuCompletions(CudaVectorMath* math, std::vector<std::unique_ptr<CudaEvent>> events,
                               std::function<void()> ring)
    : math_(*math), events_(std::move(events)), ring_(std::move(ring)), thread_([this] { Run(); }) {}

GpuCompletions::~GpuCompletions() { Stop(); }

void GpuCompletions::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyOne();
  if (thread_.joinable()) thread_.join();
}

int64_t GpuCompletions::Follow() {
  int64_t number = 0;
  {
    const MutexLock lock(mutex_);
    number = begun_ + 1;
    // The event of this number was that of an earlier one, which has ended.
    CHECK_LE(number - finished_.load(), std::ssize(events_));
    status_.Update(math_.Record(&EventOf(number)));
    begun_ = number;
  }
  changed_.NotifyOne();
  return number;
}

absl::Status GpuCompletions::status() const {
  if (!failed_.load()) return absl::OkStatus();
  const MutexLock lock(mutex_);
  return status_;
}

// Work of one stream ends in its order, so one thread waits for all of it.
void GpuCompletions::Run() {
  // A new thread has GPU 0, on which a call would make a second context of some 500 MiB.
  const absl::Status current = math_.MakeCurrent();
  const MutexLock lock(mutex_);
  status_.Update(current);
  if (!current.ok()) {
    failed_.store(true);
    ring_();
  }
  for (int64_t number = 1; status_.ok(); ++number) {
    changed_.Wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return begun_ >= number || stopping_; });
    if (begun_ < number) return;
    mutex_.Unlock();
    const absl::Status done = EventOf(number).Wait();
    mutex_.Lock();
    // An event that could not be recorded is over at once.
    status_.Update(done);
    if (status_.ok()) {
      finished_.store(number);
    } else {
      failed_.store(true);
    }
    ring_();
  }
}

}  // namespace starring
