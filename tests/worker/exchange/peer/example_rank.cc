#include "tests/worker/exchange/peer/example_rank.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/exchange/peer/example_training.h"
#include "tests/worker/processor_share.h"

ABSL_FLAG(std::string, fault, "", "the fault of --faulty_rank: seed, abort, die, stop, slow, late, sleep");
ABSL_FLAG(int, faulty_rank, 1, "the rank that misbehaves");
ABSL_FLAG(int64_t, steps, 5, "number of steps");
ABSL_FLAG(std::string, marker, "", "unused: a test finds the process by this word");
ABSL_FLAG(int, deadline_ms, 20'000, "for joining and for any one bucket");

namespace starring {
namespace {

constexpr int64_t kFaultyStep = 2;
constexpr std::chrono::seconds kSleep{2};
// The share of a core that a rank may use while it waits for a rank that sleeps. Instrumented code takes several times
// as long.
#if defined(STARRING_ASAN) || defined(STARRING_TSAN)
constexpr double kWaitingShareMax = 0.3;
#else
// A twentieth is the tenth of a second in which a rank over MPI polls. The rest was 3 to 5.6 hundredths on one machine,
// and up to 11 on a virtual one, whose wake-ups take longer. A rank that polls on has half a core or more.
constexpr double kWaitingShareMax = 0.25;
#endif

bool HasFault(const std::string& fault, int rank) {
  return absl::GetFlag(FLAGS_fault) == fault && absl::GetFlag(FLAGS_faulty_rank) == rank;
}

absl::Status CheckResult(const ExampleJob& job, int rank, const ExampleOutcome& outcome) {
  std::vector<std::vector<float>> state;
  if (outcome.parameters != job.Reference(absl::GetFlag(FLAGS_steps), &state)) {
    return absl::InternalError("wrong parameters");
  }
  if (rank == 0 && outcome.state != state) return absl::InternalError("wrong optimizer state");
  return absl::OkStatus();
}

absl::Status Misbehave(int rank) {
  if (HasFault("die", rank)) raise(SIGKILL);
  if (HasFault("stop", rank)) raise(SIGSTOP);
  if (HasFault("slow", rank)) pause();
  if (HasFault("sleep", rank)) std::this_thread::sleep_for(kSleep);
  if (HasFault("abort", rank)) return absl::InternalError("gradient of fc1.weight is NaN at step 2");
  return absl::OkStatus();
}

// Measures the step in which the other ranks wait.
absl::Status CheckWait(const ProcessorShare& share) {
  const double read = share.Read();
  if (read <= kWaitingShareMax) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("waiting took ", 100 * read, " % of a core"));
}

}  // namespace

absl::Duration ExampleRankDeadline() { return absl::Milliseconds(absl::GetFlag(FLAGS_deadline_ms)); }

absl::Status TrainExampleJob(GradientExchange& exchange, const ExampleJob& job, int rank) {
  ExampleTraining training = {.job = job, .step_count = absl::GetFlag(FLAGS_steps)};
  training.change_spec = [](int r, JobSpec& spec) {
    spec.join_deadline = ExampleRankDeadline();
    spec.exchange_deadline = spec.join_deadline;
    if (HasFault("seed", r)) spec.agreed_flags = {{"seed", "777"}};
  };
  std::optional<ProcessorShare> share;
  training.before_step = [&](int r, int64_t step) {
    if (step == kFaultyStep) {
      share.emplace();
      return Misbehave(r);
    }
    const bool has_waited = step == kFaultyStep + 1 && absl::GetFlag(FLAGS_fault) == "sleep" && !HasFault("sleep", r);
    return has_waited ? CheckWait(*share) : absl::OkStatus();
  };
  if (HasFault("late", rank)) pause();
  // After an error the library may still write to this memory, so it must not be freed when this function returns.
  auto outcome = std::make_unique<ExampleOutcome>();
  RunExampleTraining(training, exchange, rank, *outcome);
  if (!outcome->status.ok()) return outcome.release()->status;
  return CheckResult(job, rank, *outcome);
}

}  // namespace starring
