// Run records side by side: one line a run.
#ifndef STARRING_DEPLOY_RUN_RECORD_TABLE_H_
#define STARRING_DEPLOY_RUN_RECORD_TABLE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace starring {

struct RunSummary {
  std::string sync;
  int world_size = 0;
  int server_count = 0;
  double samples_per_second = 0;  // of the last epoch: the first has the start of everything in it
  double step_ms_p50 = 0;
  double exposed_exchange_ms = 0;
  double test_accuracy = 0;  // after the last epoch
  std::string parameter_sha256;
  // Equal for runs that must end with the same parameters: everything that decides the bits (DESIGN: determinism), and
  // nothing that does not. Empty for runs that promise no such thing (PyTorch's, and plain MPI_Allreduce).
  std::string bits_key;
};

// DataLoss for text that is no run record; `name` is for the message. Unknown fields are skipped: a newer Starring may
// have written it.
absl::StatusOr<RunSummary> ParseRunRecord(const std::string& name, const std::string& json);

// Headed columns, one line for each run, in the order given.
std::string FormatTable(const std::vector<RunSummary>& runs);

// Says of every group of runs that must agree whether they do: "star and ring: the same parameters, bit for bit".
// Fails with Internal, naming the runs and both digests, if two do not.
absl::StatusOr<std::string> CompareDigests(const std::vector<RunSummary>& runs);

}  // namespace starring

#endif  // STARRING_DEPLOY_RUN_RECORD_TABLE_H_
