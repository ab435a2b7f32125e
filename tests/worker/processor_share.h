// Measures the share of the processors that a process uses while it waits, for tests.
#ifndef STARRING_TESTS_WORKER_PROCESSOR_SHARE_H_
#define STARRING_TESTS_WORKER_PROCESSOR_SHARE_H_

#include <time.h>

namespace starring {

// The time that all threads of this process have spent on any core since the object was made, as a share of the time
// that has passed: 1 is a whole core.
class ProcessorShare {
 public:
  double Read() const { return (Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_) / (Seconds(CLOCK_MONOTONIC) - wall_); }

 private:
  static double Seconds(clockid_t clock) {
    timespec time = {};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  double cpu_ = Seconds(CLOCK_PROCESS_CPUTIME_ID);
  double wall_ = Seconds(CLOCK_MONOTONIC);
};

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_PROCESSOR_SHARE_H_
