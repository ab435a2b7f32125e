// One rank of an MPI job, for mpi_exchange_test.sh and mpi_fault_test.sh.
#include <stdlib.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "common/host/launcher_environment.h"
#include "common/transport/mpi/mpi_runtime.h"
#include "tests/worker/exchange/peer/example_rank.h"
#include "worker/exchange/peer/peer_exchange.h"

ABSL_FLAG(std::string, sync, "ring", "ring, star (the co-located one), memory (that star in shared memory) or mpi");

namespace starring {
namespace {

int Main() {
  const LauncherEnvironment launcher = ReadLauncherEnvironment(getenv);
  absl::StatusOr<std::unique_ptr<MpiRuntime>> runtime =
      MpiRuntime::Start(launcher, {.join_deadline = ExampleRankDeadline(), .stall_report = ExampleRankDeadline() / 2});
  if (!runtime.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", launcher.rank, runtime.status().ToString().c_str());
    return 2;
  }
  MpiRuntime& mpi = **runtime;
  using Algorithm = PeerExchange::Algorithm;
  const std::string sync = absl::GetFlag(FLAGS_sync);
  const Algorithm algorithm = sync == "ring"  ? Algorithm::kRing
                              : sync == "mpi" ? Algorithm::kAllreduce
                                              : Algorithm::kDirect;
  // With mpi the library chooses the order of the sum. Sums of integers do not depend on it.
  const bool any_order = algorithm == Algorithm::kAllreduce;
  const ExampleJob job = {.element_count = 200'000,
                          .bucket_bytes = 1,
                          .world_size = mpi.world_size(),
                          .values = any_order ? GradientValues::kIntegers : GradientValues::kAny};
  std::unique_ptr<MpiTransport> transport = CreateMpiTransport(mpi);
  const PeerExchange::Options options = {
      .algorithm = algorithm,
      .sharing = sync == "memory" ? PeerExchange::HostSharing::kRequired : PeerExchange::HostSharing::kNever,
      .mpi = transport.get()};
  auto exchange = std::make_unique<PeerExchange>(std::move(transport), options);
  const absl::Status status = TrainExampleJob(*exchange, job, mpi.rank());
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
