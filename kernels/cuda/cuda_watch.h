// Ends the wait for a GPU that hangs.
//
// When a GPU hangs, no call of CUDA returns: no wait for an event, no copy, no cudaFree, and no destructor that calls
// them. CUDA has no wait with a deadline. A loop around cudaEventQuery would work for events only, and would keep a
// core busy or sleep past the end of the step. So calls block, and return as early as they would without a watch; a
// thread of the watch looks whether they return. It cannot bring a blocked thread back, but it can end the process.
//
// Cost: a call takes a free lock twice, some 50 ns; the watch's thread wakes up eight times per deadline.
//
// Thread safety: any thread. The thread of the watch starts with the first call.
#ifndef STARRING_KERNELS_CUDA_CUDA_WATCH_H_
#define STARRING_KERNELS_CUDA_CUDA_WATCH_H_

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace starring {

class CudaWatch {
 public:
  struct Options {
    std::chrono::nanoseconds deadline{0};
    // Called by the watch's thread, with the name of a call that has lasted for the deadline, or up to an eighth
    // longer, and the answer to AskForPeers. Should end the process, by _exit: destructors would wait for the GPU too.
    std::function<void(const char* call, const std::string& late_peers)> hangs;
  };
  explicit CudaWatch(Options options) : options_(std::move(options)) {}
  ~CudaWatch();
  CudaWatch(const CudaWatch&) = delete;
  CudaWatch& operator=(const CudaWatch&) = delete;

  // While it lives, this thread is in a call of CUDA.
  class Call {
   public:
    // A null watch does nothing. `name`: a literal, as "waiting for an event".
    Call(CudaWatch* watch, const char* name);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CudaWatch* const watch_;
  };

  // From now on a GPU may wait for GPUs of other processes. `late_peers` names those for which it waits; empty: it
  // waits for none. Called by any thread, with the watch's lock. Null: none is asked any more.
  void AskForPeers(std::function<std::string()> late_peers);
  // Says that `call` hangs, which the caller has found out itself.
  void Report(const char* call);

 private:
  // A call hangs if so many looks have seen it. Looks are counted instead of time, because a process that was stopped
  // for an hour has not waited for an hour.
  static constexpr int kLooks = 8;

  struct OpenCall {
    const Call* call = nullptr;
    const char* name = nullptr;
    int looks = 0;  // how many saw this call
  };

  void Look();

  const Options options_;
  Mutex mutex_;
  ConditionVariable ends_;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<std::string()> late_peers_ ABSL_GUARDED_BY(mutex_);
  std::vector<OpenCall> calls_ ABSL_GUARDED_BY(mutex_);  // each of another thread
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_WATCH_H_
