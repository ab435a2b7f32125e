// Turns the findings of a check into one table for people and one sentence: ready, or what to mend.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_CHECK_CHECK_TABLE_H_
#define STARRING_WORKER_CHECK_CHECK_TABLE_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/job/cells.h"
#include "proto/starring/v1/check.pb.h"
#include "worker/check/meeting.h"

namespace starring {

struct CheckFindings {
  Contact contact = Contact::kNone;  // how the processes find each other
  int world_size = 1;
  int shard_count = 0;     // servers
  int lanes = 1;           // in a star: connections of a worker to each server
  int threads = 1;         // for computation, in each worker
  bool uses_gpus = false;  // those that exist; false with --device=cpu
  Reports reports;         // of the workers that reported, ascending by rank
  // Workers that should have reported and did not. Empty if only this worker's own findings are known.
  std::vector<int> missing;
  absl::Duration gather_deadline = kGatherDeadline;  // the time that they had
  BandwidthPlan bandwidth;
};

struct CheckVerdict {
  int exit_code = 0;                // of common/flags/command_line.h: 0, 2 or 3
  std::string sentence;             // the last line: the worst problem, or ready
  std::vector<std::string> others;  // the other problems, each with its way out
};

CheckVerdict JudgeCheck(const CheckFindings& findings);

// The text has two parts, because Open MPI may end the process that tries it. The first has the processes and all
// connections except those by MPI; the second has those, and the verdict. Lines have at most 120 columns.
std::string CheckTable(const CheckFindings& findings);
std::string CheckEnd(const CheckFindings& findings, const CheckVerdict& verdict);

// Printed before MPI is tried: what to do if Open MPI ends the process. Empty if nothing suggests that it will.
std::string MpiWarning(const CheckFindings& findings);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_CHECK_TABLE_H_
