// Work that takes a given time, for benchmarks whose processes compute while they exchange.
//
// Thread safety: one thread.
#ifndef STARRING_BENCH_COMPUTATION_H_
#define STARRING_BENCH_COMPUTATION_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace starring {

// Computes for a given time, as a trainer would, and without system calls, so that time which the exchange takes from
// the core lengthens it.
class Computation {
 public:
  // Calibrates: finds how many rounds take one microsecond while nothing else runs on this core.
  Computation() {
    using Clock = std::chrono::steady_clock;
    for (int i = 0; i < 5; ++i) {
      const Clock::time_point start = Clock::now();
      Rounds(kCalibrationRounds);
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
      rounds_per_us_ = std::max(rounds_per_us_, kCalibrationRounds / us);
    }
  }

  void Run(double us) { Rounds(static_cast<int64_t>(us * rounds_per_us_)); }

 private:
  static constexpr int64_t kCalibrationRounds = 200'000;

  void Rounds(int64_t count) {
    // volatile, or the compiler would leave out a loop whose result nothing uses.
    volatile double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum = sum + 1.0;
  }

  double rounds_per_us_ = 0;
};

}  // namespace starring

#endif  // STARRING_BENCH_COMPUTATION_H_
