#include "tests/worker/exchange/peer/example_rank.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "common/status.h"

ABSL_FLAG(std::string, fault, "", "the fault of --faulty_rank: seed, abort, die, stop, slow, late");
ABSL_FLAG(int, faulty_rank, 1, "the rank that misbehaves");
ABSL_FLAG(int64_t, steps, 5, "number of steps");
ABSL_FLAG(std::string, marker, "", "unused: a test finds the process by this word");
ABSL_FLAG(int, deadline_ms, 20'000, "for joining and for any one bucket");

namespace starring {
namespace {

bool HasFault(const std::string& fault, int rank) {
  return absl::GetFlag(FLAGS_fault) == fault && absl::GetFlag(FLAGS_faulty_rank) == rank;
}

absl::Status CheckSum(GradientExchange& exchange, int rank, int world_size) {
  std::vector<double> values = {1.0, static_cast<double>(rank), 0.1 * (rank + 1)};
  RETURN_IF_ERROR(exchange.Sum(SumPurpose::kStopVote, values));
  double tenths = 0;
  for (int r = 0; r < world_size; ++r) tenths += 0.1 * (r + 1);
  const std::vector<double> expected = {1.0 * world_size, world_size * (world_size - 1) / 2.0, tenths};
  return values == expected ? absl::OkStatus() : absl::InternalError("wrong sum");
}

absl::Status CheckResult(GradientExchange& exchange, const ExampleJob& job, int rank,
                         const std::vector<float>& parameters) {
  std::vector<std::vector<float>> expected_state;
  const std::vector<float> expected = job.Reference(absl::GetFlag(FLAGS_steps), &expected_state);
  const std::span<const float> own = exchange.parameter_memory();
  const bool is_right = own.empty() ? parameters == expected : std::ranges::equal(own, expected);
  if (!is_right) return absl::InternalError("wrong parameters");
  std::vector<std::vector<float>> state(expected_state.size(), std::vector<float>(job.element_count));
  const std::vector<std::span<float>> spans(state.begin(), state.end());
  RETURN_IF_ERROR(exchange.GatherOptimizerState(spans));
  if (rank == 0 && state != expected_state) return absl::InternalError("wrong optimizer state");
  return absl::OkStatus();
}

}  // namespace

absl::Duration ExampleRankDeadline() { return absl::Milliseconds(absl::GetFlag(FLAGS_deadline_ms)); }

absl::Status TrainExampleJob(GradientExchange& exchange, const ExampleJob& job, int rank) {
  JobSpec spec = job.Spec(rank);
  spec.join_deadline = ExampleRankDeadline();
  spec.exchange_deadline = spec.join_deadline;
  if (HasFault("seed", rank)) spec.agreed_flags = {{"seed", "777"}};
  if (HasFault("late", rank)) pause();
  std::vector<float> parameters = rank == 0 ? job.InitialParameters() : std::vector<float>(job.element_count, -1.0f);
  RETURN_IF_ERROR(exchange.Start(spec, parameters));
  for (int64_t step = 0; step < absl::GetFlag(FLAGS_steps); ++step) {
    if (step == 2 && HasFault("die", rank)) raise(SIGKILL);
    if (step == 2 && HasFault("stop", rank)) raise(SIGSTOP);
    if (step == 2 && HasFault("slow", rank)) pause();
    if (step == 2 && HasFault("abort", rank)) {
      const absl::Status why = absl::InternalError("gradient of fc1.weight is NaN at step 2");
      exchange.Abort(why);
      return why;
    }
    const std::vector<float> gradient = job.Gradient(rank, step);
    for (int b = 0; b < spec.buckets.bucket_count(); ++b) {
      const ElementRange range = spec.buckets.bucket(b);
      exchange.Submit(step, b, std::span<const float>(gradient).subspan(range.begin, range.size()));
    }
    // After an error the library may still write to this memory, so it must not be freed when this function returns.
    for (int b = spec.buckets.bucket_count() - 1; b >= 0; --b) {
      if (absl::Status status = exchange.Await(step, b); !status.ok()) {
        new std::vector<float>(std::move(const_cast<std::vector<float>&>(gradient)));
        new std::vector<float>(std::move(parameters));
        return status;
      }
    }
    RETURN_IF_ERROR(CheckSum(exchange, rank, job.world_size));
  }
  RETURN_IF_ERROR(CheckResult(exchange, job, rank, parameters));
  return exchange.Finish();
}

}  // namespace starring
