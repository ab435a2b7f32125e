// What a check found, as one table for people and one sentence: ready, or what to mend.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_CHECK_CHECK_TABLE_H_
#define STARRING_WORKER_CHECK_CHECK_TABLE_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/starring/v1/check.pb.h"
#include "worker/check/check_plan.h"

namespace starring {

struct CheckFindings {
  enum class Topology { kAlone, kStar, kRing };
  Topology topology = Topology::kAlone;
  int world_size = 1;
  int shard_count = 0;                     // 0 unless star
  int lanes = 1;                           // star: connections of a worker to each server
  int threads = 1;                         // of computation, of each worker
  bool uses_gpus = false;                  // where there are any: not with --device=cpu
  std::vector<v1::ProcessReport> reports;  // of the workers that reported, ascending
  // Workers that should have reported and did not. Empty where only this worker's own findings are known.
  std::vector<int> missing;
  absl::Duration gather_deadline = kGatherDeadline;  // that they had for it
  BandwidthPlan bandwidth;
};

struct CheckVerdict {
  int exit_code = 0;     // of common/flags/command_line.h: 0, 2 or 3
  std::string sentence;  // the last line
};

CheckVerdict JudgeCheck(const CheckFindings& findings);

// The text has two parts, since Open MPI may end the process that tries it: the processes and their connections, but
// for those by MPI; then those, and the verdict. Lines of at most 120 columns.
std::string CheckTable(const CheckFindings& findings);
std::string CheckEnd(const CheckFindings& findings, const CheckVerdict& verdict);

// For before MPI is tried: what to do if Open MPI does not come back from that. Empty if nothing hints at it.
std::string MpiWarning(const CheckFindings& findings);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_CHECK_TABLE_H_
