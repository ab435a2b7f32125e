#include "bench/gpu_wait_spike/verdict.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace starring::gpu_wait {
namespace {

// Two processes that share a GPU in equal time slices each take twice as long. Half of that cost counts as a loss, a
// tenth as noise.
constexpr double kYieldsRatioMax = 1.1, kKeepsRatioMin = 1.5;

// Medians, so that one disturbed repeat does not decide.
double Ratio(const YieldTimes& times) { return Percentile(times.waited_for_ms, 50) / Percentile(times.alone_ms, 50); }

std::string Failed(absl::string_view name, const absl::Status& status) {
  return absl::StrFormat("%-48s FAILED: %s", name, std::string(status.message()));
}

}  // namespace

double Percentile(std::vector<double> samples, double percent) {
  CHECK(!samples.empty());
  CHECK(percent > 0 && percent <= 100);
  std::sort(samples.begin(), samples.end());
  // The nearest rank: the least sample that `percent` of all samples do not exceed.
  const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(samples.size())));
  return samples[std::max<size_t>(rank, 1) - 1];
}

std::string PingPongLine(absl::string_view name, const absl::Status& status, const std::vector<double>& samples_us) {
  if (!status.ok()) return Failed(name, status);
  if (samples_us.empty()) return Failed(name, absl::UnknownError("no samples"));
  return absl::StrFormat("%-48s %5d rounds   p50 %9.2f us   p99 %9.2f us", name, samples_us.size(),
                         Percentile(samples_us, 50), Percentile(samples_us, 99));
}

Yields JudgeYield(const YieldTimes& times) {
  if (times.alone_ms.empty() || times.waited_for_ms.empty()) return Yields::kUnknown;
  const double ratio = Ratio(times);
  if (ratio <= kYieldsRatioMax) return Yields::kYes;
  return ratio >= kKeepsRatioMin ? Yields::kNo : Yields::kInPart;
}

std::string YieldLine(absl::string_view name, const absl::Status& status, const YieldTimes& times) {
  if (!status.ok()) return Failed(name, status);
  if (JudgeYield(times) == Yields::kUnknown) return Failed(name, absl::UnknownError("no samples"));
  return absl::StrFormat("%-48s alone %8.2f ms   with it %8.2f ms   ratio %5.2f", name, Percentile(times.alone_ms, 50),
                         Percentile(times.waited_for_ms, 50), Ratio(times));
}

std::string YieldVerdict(Yields memory_operation, Yields spinning_kernel) {
  const auto text = [](Yields yields) {
    switch (yields) {
      case Yields::kYes:
        return "yields the GPU";
      case Yields::kInPart:
        return "yields the GPU in part";
      case Yields::kNo:
        return "keeps the GPU";
      case Yields::kUnknown:
        return "was not measured";
    }
    return "";
  };
  const char* way = "pace waits by the host, or use MPS";
  if (memory_operation == Yields::kYes) {
    way = "streams may wait by memory operations";
  } else if (spinning_kernel == Yields::kYes) {
    way = "streams may wait by a spinning kernel";
  }
  if (memory_operation == Yields::kUnknown && spinning_kernel == Yields::kUnknown) way = "nothing is decided";
  return absl::StrCat("a stream that waits by memory operations ", text(memory_operation),
                      ", one with a spinning kernel ", text(spinning_kernel), ": ", way);
}

MpsDaemon FindMpsDaemon(const std::string& pipe_folder) {
  const std::string file = pipe_folder + "/nvidia-cuda-mps-control.pid";
  std::ifstream stream(file);
  pid_t pid = 0;
  if (!(stream >> pid) || pid <= 0) {
    const bool has_pipe = access((pipe_folder + "/control").c_str(), F_OK) == 0;
    return {.runs = false,
            .text = has_pipe ? absl::StrCat(pipe_folder, " has a pipe, but no ", file)
                             : absl::StrCat("no daemon in ", pipe_folder)};
  }
  // Signal 0 only asks whether the process exists. EPERM means that the process exists and belongs to another user.
  if (kill(pid, 0) != 0 && errno == ESRCH) {
    return {.runs = false, .text = absl::StrCat("the daemon of ", file, ", process ", pid, ", is gone")};
  }
  return {.runs = true, .text = absl::StrCat("its daemon is process ", pid, " (", file, ")")};
}

}  // namespace starring::gpu_wait
