// A worker that stops its own process (SIGSTOP) in phases of its work, for stall_test.py, or is slow in one, for
// straggler_test.py. STARRING_TEST_STOPS="forward:3,backward:5" stops in step 3's forward and in step 5's backward,
// each once. STARRING_TEST_SLOW="forward:2" sleeps 2 ms in every step's forward.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/progress_state.h"

namespace starring {
namespace {

// Longer than it takes until the other ranks know the phase.
constexpr std::chrono::milliseconds kHeardAfter(600);

const char* NameOf(WorkPhase phase) {
  switch (phase) {
    case WorkPhase::kReadData:
      return "data";
    case WorkPhase::kForward:
      return "forward";
    case WorkPhase::kBackward:
      return "backward";
    case WorkPhase::kExchange:
      return "exchange";
    case WorkPhase::kEvaluation:
      return "evaluation";
    case WorkPhase::kCheckpoint:
      return "checkpoint";
    default:
      return "";
  }
}

// The stops that have not happened yet.
std::set<std::string>& Stops() {
  static std::set<std::string>* const stops = [] {
    const char* const text = getenv("STARRING_TEST_STOPS");
    auto* const all = new std::set<std::string>;
    if (text != nullptr) *all = absl::StrSplit(std::string(text), ',');
    return all;
  }();
  return *stops;
}

struct Slowness {
  std::string phase;  // empty: none
  std::chrono::milliseconds sleep{0};
};

Slowness ReadSlowness() {
  const char* const text = getenv("STARRING_TEST_SLOW");
  if (text == nullptr) return {};
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, ':');
  int milliseconds = 0;
  CHECK(absl::SimpleAtoi(parts.second, &milliseconds)) << text;
  return {.phase = parts.first, .sleep = std::chrono::milliseconds(milliseconds)};
}

// A step may enter a phase several times.
void SleepOnceAStep(const std::string& phase, int64_t step) {
  static const Slowness* const slowness = new Slowness(ReadSlowness());
  static int64_t last_step = -1;
  if (phase != slowness->phase || step == last_step) return;
  last_step = step;
  std::this_thread::sleep_for(slowness->sleep);
}

}  // namespace

// Replaces the definition that does nothing. The trainer's thread calls it.
void OnWorkPhase(WorkPhase phase, int64_t step) {
  SleepOnceAStep(NameOf(phase), step);
  const std::string here = absl::StrCat(NameOf(phase), ":", step);
  if (Stops().erase(here) == 0) return;
  std::this_thread::sleep_for(kHeardAfter);
  std::fprintf(stderr, "stops in %s\n", here.c_str());
  raise(SIGSTOP);
}

}  // namespace starring
