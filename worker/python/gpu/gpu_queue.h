// A stream of ours on a GPU, and a thread that waits for its work and says how much of it has ended.
//
// Thread safety: one thread calls Follow; any thread the others.
#ifndef STARRING_WORKER_PYTHON_GPU_GPU_QUEUE_H_
#define STARRING_WORKER_PYTHON_GPU_GPU_QUEUE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/python/gpu/cuda_driver.h"
#include "worker/python/gpu/gpu_context.h"

namespace starring {

class GpuQueue {
 public:
  // `context` outlives the queue. `ring` is called by the queue's thread after each change of finished().
  static absl::StatusOr<std::unique_ptr<GpuQueue>> Create(const GpuContext* context, std::function<void()> ring);
  // REQUIRES: Stop has returned true. A queue whose work does not end stays until the process ends.
  ~GpuQueue();

  CudaDriver::Stream stream() const { return stream_; }
  // Work was enqueued: returns the number that finished() reaches when all of it has ended.
  int64_t Follow() ABSL_LOCKS_EXCLUDED(mutex_);
  // The greatest number of all after an error, so that nobody waits for ever.
  const std::atomic<int64_t>& finished() const { return finished_; }
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether all work has ended within `patience`. Afterwards `ring` is not called, and Follow must not be.
  [[nodiscard]] bool Stop(std::chrono::milliseconds patience) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  GpuQueue(const GpuContext* context, std::function<void()> ring) : context_(*context), ring_(std::move(ring)) {}
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Await(CudaDriver::Event event);

  const GpuContext& context_;
  const std::function<void()> ring_;
  CudaDriver::Stream stream_ = nullptr;
  std::atomic<int64_t> finished_ = 0;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::deque<CudaDriver::Event> pending_ ABSL_GUARDED_BY(mutex_);  // null: it could not be recorded
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // the thread touches this object no more
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GPU_GPU_QUEUE_H_
