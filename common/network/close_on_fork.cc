#include "common/network/close_on_fork.h"

#include <pthread.h>
#include <unistd.h>

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace starring {
namespace {

struct Marked {
  Mutex mutex;
  std::vector<int> fds ABSL_GUARDED_BY(mutex);
};

void Lock();
void Unlock();
void CloseAll();

// Never destroyed: a process may fork while it ends.
Marked& AllMarked() {
  static Marked& marked = *[] {
    pthread_atfork(Lock, Unlock, CloseAll);
    return new Marked;
  }();
  return marked;
}

// The list must not be half changed when the child gets its copy. The child's only thread is the one that has forked,
// and holds the lock.
void Lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { AllMarked().mutex.Lock(); }
void Unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { AllMarked().mutex.Unlock(); }

// Only what may be done between fork and exec: other threads may have held the locks of memory and of everything else.
void CloseAll() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Marked& marked = AllMarked();
  for (const int fd : marked.fds) close(fd);
  marked.fds.clear();
  marked.mutex.Unlock();
}

}  // namespace

CloseOnFork::CloseOnFork(int fd) : fd_(fd) {
  if (fd < 0) return;
  Marked& marked = AllMarked();
  const MutexLock lock(marked.mutex);
  marked.fds.push_back(fd);
}

CloseOnFork::~CloseOnFork() {
  if (fd_ < 0) return;
  Marked& marked = AllMarked();
  const MutexLock lock(marked.mutex);
  const auto place = absl::c_find(marked.fds, fd_);
  if (place != marked.fds.end()) marked.fds.erase(place);
}

}  // namespace starring
