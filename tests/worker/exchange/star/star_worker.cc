// A worker without a model, for tests that run processes: trains on made-up integer gradients and prints the SHA-256 of
// its parameters.
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "common/security/sha256.h"
#include "common/security/transport_security.h"
#include "tests/worker/exchange/star/star_fixture.h"

ABSL_FLAG(std::vector<std::string>, servers, {}, "as //worker's");
ABSL_FLAG(int, rank, 0, "as //worker's");
ABSL_FLAG(int, world_size, 1, "as //worker's");
ABSL_FLAG(int64_t, elements, 150'000, "length of the parameter vector");
ABSL_FLAG(int64_t, steps, 3, "number of steps");
ABSL_FLAG(absl::Duration, deadline, absl::Seconds(30), "for joining and for every bucket");
ABSL_FLAG(std::string, job_secret, "", "as //worker's");
ABSL_FLAG(bool, tls, false, "as //worker's");
ABSL_FLAG(std::string, agreement_file, "", "write the agreement there and do nothing else");

namespace starring {
namespace {

absl::Status Work() {
  JobSpec job = MakeJob(absl::GetFlag(FLAGS_rank), absl::GetFlag(FLAGS_world_size), absl::GetFlag(FLAGS_elements), 1);
  job.join_deadline = job.exchange_deadline = absl::GetFlag(FLAGS_deadline);
  if (const std::string path = absl::GetFlag(FLAGS_agreement_file); !path.empty()) {
    FILE* const file = std::fopen(path.c_str(), "wb");
    CHECK(file != nullptr) << path;
    const std::string bytes = SerializeAgreement(job);
    CHECK_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    std::fclose(file);
    return absl::OkStatus();
  }
  std::vector<float> parameters(job.layout.element_count(), 0.0f);
  if (job.rank == 0) parameters = InitialParameters(job.layout.element_count());
  const auto security =
      LoadTransportSecurity({.job_secret = absl::GetFlag(FLAGS_job_secret), .tls = absl::GetFlag(FLAGS_tls)});
  if (!security.ok()) return security.status();
  const auto made = CreateStarExchange({.addresses = absl::GetFlag(FLAGS_servers), .security = *security});
  CHECK_OK(made);
  GradientExchange* const exchange = made->get();
  absl::Status status = exchange->Start(job, parameters);
  if (status.ok()) status = TrainSteps(exchange, job, absl::GetFlag(FLAGS_steps), GradientAt);
  if (status.ok()) status = exchange->Finish();
  parameters = ParametersOf(*exchange, parameters);
  if (status.ok()) std::printf("%s\n", Sha256Hex(std::as_bytes(std::span(parameters))).c_str());
  return status;
}

int Main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = Work();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) { return starring::Main(argc, argv); }
