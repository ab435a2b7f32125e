#include "common/watch/progress_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace starring {

// Weak, so that a test's definition replaces it at link time.
__attribute__((weak)) void OnWorkPhase(WorkPhase, int64_t) {}

std::string DescribeWork(const WorkState& state) {
  switch (state.phase) {
    case WorkPhase::kStart:
      return "starting";
    case WorkPhase::kReadData:
      return absl::StrCat("reading data for step ", state.step);
    case WorkPhase::kForward:
      return absl::StrCat("in forward of step ", state.step);
    case WorkPhase::kBackward:
      return absl::StrCat("in backward of step ", state.step);
    case WorkPhase::kExchange:
      if (state.step < 0) return "in the exchange before the first step";
      return absl::StrCat("in the exchange at step ", state.step,
                          state.bucket < 0 ? "" : absl::StrCat(", bucket ", state.bucket));
    case WorkPhase::kEvaluation:
      return state.step < 0 ? "in the evaluation" : absl::StrCat("in the evaluation after step ", state.step);
    case WorkPhase::kCheckpoint:
      return absl::StrCat("in the checkpoint after step ", state.step);
    case WorkPhase::kBetweenSteps:
      return absl::StrCat("between two steps, at step ", state.step);
    case WorkPhase::kOutside:
      if (state.step < 0) return "outside the exchange, before the first step";
      return absl::StrCat("outside the exchange, after step ", state.step, ", bucket ", state.bucket);
    // This is the phase before the first one, and what an unknown number of another build's becomes.
    case WorkPhase::kUnknown:
      break;
  }
  return "computing";
}

WorkState ProgressState::Read(Clock::time_point now) const {
  // The two loads may belong to neighbouring phases: then the age is off by one phase, which only a report shows.
  const uint64_t packed = packed_.load(std::memory_order_relaxed);
  const Clock::time_point since(Clock::duration(since_ns_.load(std::memory_order_relaxed)));
  return {.phase = static_cast<WorkPhase>(packed & 0xf),
          .step = static_cast<int64_t>(packed >> 24) - 1,
          .bucket = static_cast<int>(packed >> 4 & 0xfffff) - 1,
          .age = std::max(std::chrono::milliseconds(0),
                          std::chrono::duration_cast<std::chrono::milliseconds>(now - since))};
}

}  // namespace starring
