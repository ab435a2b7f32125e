// Says when the GPU has done the work that one stream was given: on a counter, and by a bell. So the thread that gives
// the work need not wait for the GPU, and holds no lock of the exchange meanwhile.
//
// A thread of this object waits for the GPU. A GPU that hangs is noticed by the watch of the device (cuda_watch.h).
//
// Cost: an event, and one wake-up of the thread, for each Follow.
//
// Thread safety: any thread; Create on the device's.
#ifndef STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_COMPLETIONS_H_
#define STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_COMPLETIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "kernels/cuda/cuda_device.h"

namespace starring {

class GpuCompletions {
 public:
  // At most `in_flight_max` numbers of Follow are ever above finished(). `ring` is called, by the thread of this
  // object, after each change of finished() or status(). `device` and `math` outlive this object.
  static absl::StatusOr<std::unique_ptr<GpuCompletions>> Create(CudaDevice* device, CudaVectorMath* math,
                                                                int in_flight_max, std::function<void()> ring);
  ~GpuCompletions();
  GpuCompletions(const GpuCompletions&) = delete;
  GpuCompletions& operator=(const GpuCompletions&) = delete;

  // Returns a number that finished() reaches when all that `math` was given before is done. Numbers begin with 1.
  // REQUIRES: no other thread uses `math` now.
  int64_t Follow();
  // Waits for what the GPU was given, and ends the thread: from then on the device may go. Follow is not called again.
  void Stop();
  // Stays where it is after an error.
  const std::atomic<int64_t>& finished() const { return finished_; }
  // The first error of the GPU.
  absl::Status status() const;

 private:
  GpuCompletions(CudaVectorMath* math, std::vector<std::unique_ptr<CudaEvent>> events, std::function<void()> ring);
  CudaEvent& EventOf(int64_t number) const { return *events_[static_cast<size_t>(number) % events_.size()]; }
  void Run();

  CudaVectorMath& math_;
  const std::vector<std::unique_ptr<CudaEvent>> events_;  // used in turn
  const std::function<void()> ring_;
  std::atomic<int64_t> finished_ = 0;
  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_COMPLETIONS_H_
