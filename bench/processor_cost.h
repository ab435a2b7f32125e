// Measures what a step costs the cores, for benchmarks.
//
// Thread safety: any thread may call ReadProcessorCost; values are plain.
#ifndef STARRING_BENCH_PROCESSOR_COST_H_
#define STARRING_BENCH_PROCESSOR_COST_H_

#include <sys/resource.h>
#include <sys/time.h>

namespace starring {

// The cost of all threads of a process. A switch is voluntary if the thread sleeps, and involuntary if it must give
// way.
struct ProcessorCost {
  double cpu_us = 0;  // user and system
  double voluntary_switches = 0;
  double involuntary_switches = 0;

  ProcessorCost& operator+=(const ProcessorCost& other) {
    cpu_us += other.cpu_us;
    voluntary_switches += other.voluntary_switches;
    involuntary_switches += other.involuntary_switches;
    return *this;
  }
  ProcessorCost operator*(double factor) const {
    return {cpu_us * factor, voluntary_switches * factor, involuntary_switches * factor};
  }
  ProcessorCost operator-(const ProcessorCost& other) const {
    ProcessorCost difference = *this;
    return difference += other * -1;
  }
};

// The cost since this process began.
inline ProcessorCost ReadProcessorCost() {
  rusage use = {};
  getrusage(RUSAGE_SELF, &use);
  const auto us = [](const timeval& time) {
    return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
  };
  return {us(use.ru_utime) + us(use.ru_stime), static_cast<double>(use.ru_nvcsw), static_cast<double>(use.ru_nivcsw)};
}

// The largest resident memory of this process so far.
inline double ReadResidentKib() {
  rusage use = {};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_maxrss);
}

}  // namespace starring

#endif  // STARRING_BENCH_PROCESSOR_COST_H_
