// Processes of a benchmark that fork it, and results that they share with it.
//
// Thread safety: one thread. The parent has no other one, and uses neither gRPC nor MPI, whose threads and locks do not
// survive a fork.
#ifndef STARRING_BENCH_PROCESSES_H_
#define STARRING_BENCH_PROCESSES_H_

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <thread>

#include "common/base/check.h"

namespace starring {

// Keeps the calling process to core `process` modulo the number of cores.
inline void PinToCore(int process) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(process % std::max(1u, std::thread::hardware_concurrency()), &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

// Runs `body` in a child, which ends with the result by _exit: it does not run the parent's destructors.
template <typename Body>
void Fork(Body body) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  CHECK_GE(pid, 0);
  if (pid > 0) return;
  // A time limit, such as that of bench/growth, kills the parent alone. Children that went on would slow the next
  // measurement.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent ended before the prctl
  _exit(body());
}

// Waits until all children have ended. Fails if one has not ended with 0.
inline void AwaitChildren() {
  int status = 0;
  while (wait(&status) > 0) CHECK_EQ(status, 0);
}

// An array that this process and the children that it forks later write and read.
template <typename T>
class SharedArray {
 public:
  explicit SharedArray(size_t count) {
    void* const memory = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    elements_ = {static_cast<T*>(memory), count};
    std::ranges::fill(elements_, T());
  }
  ~SharedArray() { munmap(elements_.data(), elements_.size_bytes()); }
  SharedArray(const SharedArray&) = delete;
  SharedArray& operator=(const SharedArray&) = delete;

  std::span<T> elements() const { return elements_; }

 private:
  std::span<T> elements_;
};

}  // namespace starring

#endif  // STARRING_BENCH_PROCESSES_H_
