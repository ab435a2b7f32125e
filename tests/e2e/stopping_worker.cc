// //worker that stops its own process (SIGSTOP) in phases of its work, for stall_test.py. STARRING_TEST_STOPS says
// where: "forward:3,backward:5" stops in step 3's forward and in step 5's backward, each once.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/progress_state.h"

namespace starring {
namespace {

// Longer than it takes until others have heard of a phase.
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

// The stops that are still to come.
std::set<std::string>& Stops() {
  static std::set<std::string>* const stops = [] {
    const char* const text = getenv("STARRING_TEST_STOPS");
    auto* const all = new std::set<std::string>;
    if (text != nullptr) *all = absl::StrSplit(std::string(text), ',');
    return all;
  }();
  return *stops;
}

}  // namespace

// In the place of the one that does nothing. Called by the trainer's thread.
void OnWorkPhase(WorkPhase phase, int64_t step) {
  const std::string here = absl::StrCat(NameOf(phase), ":", step);
  if (Stops().erase(here) == 0) return;
  std::this_thread::sleep_for(kHeardAfter);
  std::fprintf(stderr, "stops in %s\n", here.c_str());
  raise(SIGSTOP);
}

}  // namespace starring
