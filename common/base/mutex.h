// A mutex, a lock and a condition variable that clang's thread-safety analysis understands.
//
//   class Counter {
//    public:
//     void Add(int n) {
//       const MutexLock lock(mutex_);
//       sum_ += n;
//       if (sum_ >= kEnough) changed_.NotifyAll();
//     }
//     void WaitUntilEnough() {
//       const MutexLock lock(mutex_);
//       changed_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return sum_ >= kEnough; });
//     }
//
//    private:
//     Mutex mutex_;
//     ConditionVariable changed_;
//     int sum_ ABSL_GUARDED_BY(mutex_) = 0;
//   };
//
// Every member that a mutex guards has ABSL_GUARDED_BY, and every function that expects its caller to hold the mutex
// has ABSL_EXCLUSIVE_LOCKS_REQUIRED. `bazel build --config=tidy //...` then refuses an access without the lock; GCC
// ignores the attributes. The analysis does not look into constructors and destructors.
//
// The classes wrap std::mutex rather than use absl::Mutex because ThreadSanitizer cannot see the synchronisation inside
// the system's Abseil, which is not instrumented, and would report races where there are none.
#ifndef STARRING_COMMON_BASE_MUTEX_H_
#define STARRING_COMMON_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"

namespace starring {

// Locked by a MutexLock. Lock and Unlock are for a loop that lets go of the mutex while it works; they must be balanced
// inside the MutexLock's scope.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// Holds the mutex from its construction to its destruction.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Each wait lets go of the mutex while it sleeps and holds it again whenever it evaluates `ready` and when it returns.
class ConditionVariable {
 public:
  // Returns when `ready()` is true.
  template <typename Ready>
  void Wait(Mutex& mutex, Ready ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    condition_.wait(held.lock, std::move(ready));
  }
  // Returns when notified, after `patience`, or earlier for no reason at all.
  template <typename Rep, typename Period>
  void WaitFor(Mutex& mutex, std::chrono::duration<Rep, Period> patience) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    condition_.wait_for(held.lock, patience);
  }
  // Also returns after `patience`, or at `deadline`. The result is that of the last `ready()`.
  template <typename Rep, typename Period, typename Ready>
  bool WaitFor(Mutex& mutex, std::chrono::duration<Rep, Period> patience, Ready ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    return condition_.wait_for(held.lock, patience, std::move(ready));
  }
  template <typename Clock, typename Duration, typename Ready>
  bool WaitUntil(Mutex& mutex, std::chrono::time_point<Clock, Duration> deadline, Ready ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    return condition_.wait_until(held.lock, deadline, std::move(ready));
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  // The mutex, which the caller has locked and will unlock, as std::condition_variable takes it.
  struct Held {
    explicit Held(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Held() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable condition_;
};

}  // namespace starring

#endif  // STARRING_COMMON_BASE_MUTEX_H_
