// Turns the findings of a check into one table for people and one sentence: ready, or what to mend.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_CHECK_CHECK_TABLE_H_
#define STARRING_WORKER_CHECK_CHECK_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/host/machine_limits.h"
#include "common/job/cells.h"
#include "proto/starring/v1/check.pb.h"
#include "worker/check/meeting.h"

namespace starring {

struct CheckFindings {
  Contact contact = Contact::kNone;  // how the processes find each other
  int world_size = 1;
  int shard_count = 0;                     // servers
  int lanes = 1;                           // in a star: connections of a worker to each server
  int threads = 1;                         // for computation, in each worker
  bool uses_gpus = false;                  // those that exist; false with --device=cpu
  std::vector<v1::ProcessReport> reports;  // of the workers that reported, ascending by rank
  // Workers that should have reported and did not. Empty if only this worker's own findings are known.
  std::vector<int> missing;
  absl::Duration gather_deadline = kGatherDeadline;  // the time that they had
  BandwidthPlan bandwidth;
};

struct CheckVerdict {
  int exit_code = 0;     // of common/flags/command_line.h: 0, 2 or 3
  std::string sentence;  // the last line
};

CheckVerdict JudgeCheck(const CheckFindings& findings);

// The text has two parts, because Open MPI may end the process that tries it. The first has the processes and all
// connections except those by MPI; the second has those, and the verdict. Lines have at most 120 columns.
std::string CheckTable(const CheckFindings& findings);
std::string CheckEnd(const CheckFindings& findings, const CheckVerdict& verdict);

// Printed before MPI is tried: what to do if Open MPI ends the process. Empty if nothing suggests that it will.
std::string MpiWarning(const CheckFindings& findings);

// For the sources of this header.
namespace check_table {

struct Problem {
  int exit_code = 0;  // of this problem alone; 0 if a job would run in spite of it
  std::string text;
};
// The worst first: what keeps a job from running, then what would only make it worse.
std::vector<Problem> FindProblems(const CheckFindings& findings);

std::string NameOf(v1::ProcessFacts::Role role, int number);  // "w3", "s0"
std::string NameOf(const v1::ProcessFacts& facts);
std::string PeerOf(const v1::LinkReport& link);
std::string NamesText(const std::vector<std::string>& names);  // "w0, w1, w2, w3 and 5 more"
std::string CountText(int64_t count, absl::string_view noun);  // "1 worker", "2 workers"
CoreLimits LimitsOf(const v1::ProcessFacts& facts);
std::string MemoryText(int64_t bytes);     // "1.5 GiB"
std::string Wrap(absl::string_view text);  // cut at spaces; later lines are indented

// All processes that any report knows of: workers, then servers.
std::vector<const v1::ProcessFacts*> AllProcesses(const CheckFindings& findings);
// By name: how many seconds a process's wall clock is ahead of the first worker's, where connections tell.
std::map<std::string, double> ClocksAhead(const CheckFindings& findings);

}  // namespace check_table
}  // namespace starring

#endif  // STARRING_WORKER_CHECK_CHECK_TABLE_H_
