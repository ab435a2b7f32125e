#include "worker/python/gpu/gpu_queue.h"

#include <pthread.h>
#include <signal.h>

#include <limits>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {

absl::StatusOr<std::unique_ptr<GpuQueue>> GpuQueue::Create(const GpuContext* context, std::function<void()> ring) {
  auto queue = absl::WrapUnique(new GpuQueue(context, std::move(ring)));
  const CudaDriver& driver = context->driver();
  RETURN_IF_ERROR(
      driver.StatusOf(driver.stream_create(&queue->stream_, CudaDriver::kStreamNonBlocking), "making a stream"));
  // The thread inherits the mask of signals: those of the process are for threads that expect them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::Status status;
  try {
    queue->thread_ = std::thread([queue = queue.get()] { queue->Run(); });
  } catch (const std::system_error& error) {
    status = absl::InternalError(absl::StrCat("cannot start a thread: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status.ok()) return status;
  return queue;
}

GpuQueue::~GpuQueue() {
  CHECK(!thread_.joinable());
  if (stream_ == nullptr) return;
  const GpuContext::Scope scope(context_);
  context_.driver().stream_destroy(stream_);
}

bool GpuQueue::Stop(std::chrono::milliseconds patience) {
  if (!thread_.joinable()) return true;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.NotifyAll();
    const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_over_; };
    is_abandoned_ = !changed_.WaitFor(mutex_, patience, is_over);
    if (is_abandoned_) return false;
  }
  thread_.join();
  return true;
}

int64_t GpuQueue::Follow() {
  const CudaDriver& driver = context_.driver();
  CudaDriver::Event event = nullptr;
  absl::Status status = driver.StatusOf(
      driver.event_create(&event, CudaDriver::kEventDisableTiming | CudaDriver::kEventBlockingSync), "making an event");
  if (status.ok()) {
    status = driver.StatusOf(driver.event_record(event, stream_), "recording an event");
    if (!status.ok()) driver.event_destroy(std::exchange(event, nullptr));
  }
  const MutexLock lock(mutex_);
  status_.Update(status);
  pending_.push_back(event);
  changed_.NotifyAll();
  return ++begun_;
}

absl::Status GpuQueue::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

absl::Status GpuQueue::Await(CudaDriver::Event event) {
  const CudaDriver& driver = context_.driver();
  if (event == nullptr) return driver.StatusOf(driver.stream_synchronize(stream_), "the GPU's work for a sum");
  const absl::Status status = driver.StatusOf(driver.event_synchronize(event), "the GPU's work for a sum");
  driver.event_destroy(event);
  return status;
}

// Work of one stream ends in its order, so one thread waits for all of it. After an error it still waits: the arrays
// belong to the work until that has ended.
void GpuQueue::Run() {
  // A new thread has no context.
  const absl::Status current = context_.MakeCurrent();
  const MutexLock lock(mutex_);
  status_.Update(current);
  while (true) {
    changed_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_stopping_ || !pending_.empty(); });
    if (pending_.empty()) break;
    const CudaDriver::Event event = pending_.front();
    pending_.pop_front();
    mutex_.Unlock();
    const absl::Status done = Await(event);
    mutex_.Lock();
    status_.Update(done);
    finished_.store(status_.ok() ? finished_.load() + 1 : std::numeric_limits<int64_t>::max());
    if (!is_abandoned_) ring_();
  }
  is_over_ = true;
  changed_.NotifyAll();
}

}  // namespace starring
