// One rank of an MPI job, for mpi_exchange_test.sh: trains an example job for some steps through the real exchange and
// compares every bit with the reference. `--fault` makes one rank misbehave.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "worker/exchange/peer/mpi_runtime.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/launcher_environment.h"

ABSL_FLAG(std::string, sync, "ring", "ring or mpi");
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
  if (parameters != expected) return absl::InternalError("wrong parameters");
  std::vector<std::vector<float>> state(expected_state.size(), std::vector<float>(job.element_count));
  const std::vector<std::span<float>> spans(state.begin(), state.end());
  RETURN_IF_ERROR(exchange.GatherOptimizerState(spans));
  if (rank == 0 && state != expected_state) return absl::InternalError("wrong optimizer state");
  return absl::OkStatus();
}

absl::Status Train(GradientExchange& exchange, const ExampleJob& job, int rank) {
  JobSpec spec = job.Spec(rank);
  spec.join_deadline = absl::Milliseconds(absl::GetFlag(FLAGS_deadline_ms));
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
    // After an error MPI may still write to this memory, so it must not be freed when this function returns.
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

int Main() {
  const LauncherEnvironment launcher = ReadLauncherEnvironment(getenv);
  absl::StatusOr<std::unique_ptr<MpiRuntime>> runtime =
      MpiRuntime::Start(launcher, absl::Milliseconds(absl::GetFlag(FLAGS_deadline_ms)));
  if (!runtime.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", launcher.rank, runtime.status().ToString().c_str());
    return 2;
  }
  MpiRuntime& mpi = **runtime;
  const bool ring = absl::GetFlag(FLAGS_sync) == "ring";
  // With mpi the library chooses the order of the sum. Sums of integers do not depend on it.
  const ExampleJob job = {.element_count = 200'000,
                          .bucket_bytes = 1,
                          .world_size = mpi.world_size(),
                          .values = ring ? GradientValues::kAny : GradientValues::kIntegers};
  auto exchange = std::make_unique<PeerExchange>(
      CreateMpiTransport(mpi),
      PeerExchange::Options{.algorithm = ring ? PeerExchange::Algorithm::kRing : PeerExchange::Algorithm::kAllreduce});
  const absl::Status status = Train(*exchange, job, mpi.rank());
  if (!status.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), status.ToString().c_str());
    mpi.ExitWithoutFinalize(3);
  }
  exchange.reset();
  std::printf("rank %d of %d: ok\n", mpi.rank(), mpi.world_size());
  return 0;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return starring::Main();
}
