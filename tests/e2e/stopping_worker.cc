// A worker that misbehaves as variables say:
//
//   STARRING_TEST_STOPS="forward:3,backward:5"   stops its own process (SIGSTOP) in step 3's forward and in step 5's
//                                                backward, each once
//   STARRING_TEST_BLOCKS="forward:3"             never leaves step 3's forward; only the thread that trains is stuck
//   STARRING_TEST_SLOW="forward:2"               sleeps 2 ms in the forward of every batch
//   STARRING_TEST_ROUNDS="down"                  rounds the result of every operation down, so that it computes other
//                                                bits than other workers, as defective hardware may
//   STARRING_TEST_EXPONENTIALS="7"               all exponentials but the first 7 are the next smaller number
//   STARRING_TEST_FAILS="forward:40"             its device reports an error in step 40's forward
//   STARRING_TEST_NAN="forward:40"               one exponential of step 40's forward is not finite, once
//
// After SIGUSR2 its device reports an error in the next forward.
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/watch/progress_state.h"
#include "worker/model/network.h"

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

// A batch begins with the reading of its data, and may enter its other phases several times.
void SleepOnceABatch(WorkPhase phase) {
  static const Slowness* const slowness = new Slowness(ReadSlowness());
  static bool has_slept = false;
  if (phase == WorkPhase::kReadData) has_slept = false;
  if (NameOf(phase) != slowness->phase || std::exchange(has_slept, true)) return;
  std::this_thread::sleep_for(slowness->sleep);
}

void BlockIfAsked(const std::string& here) {
  static const char* const place = getenv("STARRING_TEST_BLOCKS");
  if (place == nullptr || here != place) return;
  std::fprintf(stderr, "blocks in %s\n", here.c_str());
  while (true) pause();  // a signal to stop ends one of them
}

// Set when an operation is to go wrong.
std::atomic<bool>& DeviceFails() {
  static std::atomic<bool> fails = false;
  return fails;
}
std::atomic<bool> nan_is_due = false;
std::atomic<bool> has_been_nan = false;

void FailIfAsked(const std::string& here) {
  static const char* const failure = getenv("STARRING_TEST_FAILS");
  static const char* const nan = getenv("STARRING_TEST_NAN");
  if (failure != nullptr && here == failure) DeviceFails() = true;
  // A forward that waits for parameters enters its phase again before its first exponential.
  nan_is_due = nan != nullptr && here == nan && !has_been_nan;
}

[[gnu::constructor, maybe_unused]] void FailAtASignal() {
  DeviceFails() = false;  // made before a signal can come
  signal(SIGUSR2, [](int) { DeviceFails() = true; });
}

float NextSmallerExponential(float x) {
  if (nan_is_due && nan_is_due.exchange(false)) {
    has_been_nan = true;
    return std::numeric_limits<float>::quiet_NaN();
  }
  static auto* const real = reinterpret_cast<float (*)(float)>(dlsym(RTLD_NEXT, "expf"));
  static const char* const asked = getenv("STARRING_TEST_EXPONENTIALS");
  static int64_t left = asked == nullptr ? std::numeric_limits<int64_t>::max() : strtoll(asked, nullptr, 10);
  return --left >= 0 ? real(x) : std::nextafter(real(x), 0.0f);
}

// Before main: the threads that main starts inherit the rounding.
[[gnu::constructor, maybe_unused]] void RoundDownIfAsked() {
  const char* const direction = getenv("STARRING_TEST_ROUNDS");
  if (direction != nullptr && std::string(direction) == "down") std::fesetround(FE_DOWNWARD);
}

}  // namespace

}  // namespace starring

// Replaces libm's for all of this program.
extern "C" float expf(float x) { return starring::NextSmallerExponential(x); }

namespace starring {

// The linker puts the second in the place of the first (--wrap), which is Network::Forward.
using AwaitLayer = absl::FunctionRef<absl::Status(int layer)>;
absl::Status RealForward(Network* network, const Network::TrainStep& step, AwaitLayer before_layer) asm(
    "__real__ZN8starring7Network7ForwardERKNS0_9TrainStepEN4absl7debian311FunctionRefIFNS5_6StatusEiEEE");
absl::Status WrappedForward(Network* network, const Network::TrainStep& step, AwaitLayer before_layer) asm(
    "__wrap__ZN8starring7Network7ForwardERKNS0_9TrainStepEN4absl7debian311FunctionRefIFNS5_6StatusEiEEE");
absl::Status WrappedForward(Network* network, const Network::TrainStep& step, AwaitLayer before_layer) {
  if (DeviceFails().exchange(false)) return absl::InternalError("forward: uncorrectable ECC error encountered");
  return RealForward(network, step, before_layer);
}

// Replaces the definition that does nothing. The trainer's thread calls it.
void OnWorkPhase(WorkPhase phase, int64_t step) {
  SleepOnceABatch(phase);
  const std::string here = absl::StrCat(NameOf(phase), ":", step);
  BlockIfAsked(here);
  FailIfAsked(here);
  if (Stops().erase(here) == 0) return;
  std::this_thread::sleep_for(kHeardAfter);
  std::fprintf(stderr, "stops in %s\n", here.c_str());
  raise(SIGSTOP);
}

}  // namespace starring
