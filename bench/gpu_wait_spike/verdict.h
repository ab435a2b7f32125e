// Evaluates samples: percentiles, lines of the table, and the sentence that answers each question.
//
// Thread safety: functions without state.
#ifndef STARRING_BENCH_GPU_WAIT_SPIKE_VERDICT_H_
#define STARRING_BENCH_GPU_WAIT_SPIKE_VERDICT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace starring::gpu_wait {

// The smallest sample that at least `percent` of the samples do not exceed.
// REQUIRES: samples is not empty; 0 < percent <= 100.
double Percentile(std::vector<double> samples, double percent);

// "memory operations, host page      1000 rounds   p50    7.41 us   p99    9.80 us", or the error in the samples'
// place.
std::string PingPongLine(absl::string_view name, const absl::Status& status, const std::vector<double>& samples_us);

// How long the same kernels of process 0 took, in milliseconds, while process 1 did nothing, and while it waited.
struct YieldTimes {
  std::vector<double> alone_ms;
  std::vector<double> waited_for_ms;
};

enum class Yields { kYes, kInPart, kNo, kUnknown };

// kYes: a wait of process 1 makes the kernels at most 1.1 times as long; kNo: at least 1.5 times. kUnknown without
// samples.
Yields JudgeYield(const YieldTimes& times);

std::string YieldLine(absl::string_view name, const absl::Status& status, const YieldTimes& times);

// How streams of several processes on one GPU may wait for each other.
std::string YieldVerdict(Yields memory_operation, Yields spinning_kernel);

// Looks for the daemon of NVIDIA's MPS in `pipe_folder`, where its clients find it. Starts and changes nothing.
struct MpsDaemon {
  bool runs = false;
  std::string text;
};
MpsDaemon FindMpsDaemon(const std::string& pipe_folder);

}  // namespace starring::gpu_wait

#endif  // STARRING_BENCH_GPU_WAIT_SPIKE_VERDICT_H_
