// Compares run records: a table with one line for each run, and whether runs that must agree do.
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
  double samples_per_second = 0;  // in the last epoch: the first one includes the start of all processes
  double step_ms_p50 = 0;
  double exposed_exchange_ms = 0;
  double test_accuracy = 0;  // after the last epoch
  bool has_accuracy = true;  // false: the targets are numbers
  std::string parameter_sha256;
  // Equal for runs that must end with the same parameters: it has all flags that decide the bits (common/README.md) and
  // no others. Empty for runs without that guarantee (PyTorch's, and the allreduce of MPI or NCCL).
  std::string bits_key;
};

// DataLoss if the text is no run record; `name` is for the message. Unknown fields are skipped, because a newer
// Starring may have written the record.
absl::StatusOr<RunSummary> ParseRunRecord(const std::string& name, const std::string& json);

// A header, then one line for each run, in the given order.
std::string FormatTable(const std::vector<RunSummary>& runs);

// A sentence for each group of runs that must agree: "star and ring: the same parameters, bit for bit".
// Internal, with the runs and both digests, if two of them differ.
absl::StatusOr<std::string> CompareDigests(const std::vector<RunSummary>& runs);

}  // namespace starring

#endif  // STARRING_DEPLOY_RUN_RECORD_TABLE_H_
