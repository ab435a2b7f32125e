// The check of each way to meet (Contact of common/job/cells.h), which check.cc chooses from, and what both need.
// Internal to worker/check.
#ifndef STARRING_WORKER_CHECK_TOPOLOGY_CHECK_H_
#define STARRING_WORKER_CHECK_TOPOLOGY_CHECK_H_

#include <vector>

#include "absl/status/status.h"
#include "common/network/dial.h"
#include "proto/starring/v1/check.pb.h"
#include "worker/check/check.h"
#include "worker/check/check_table.h"
#include "worker/check/meeting.h"

namespace starring {

CheckOutcome CheckStar(const CheckParts& parts, v1::ProcessReport report);
CheckOutcome CheckOverMpi(const CheckParts& parts, v1::ProcessReport report);
CheckOutcome CheckMesh(const CheckParts& parts, v1::ProcessReport report);

// The findings before any report.
CheckFindings EmptyFindings(const CheckParts& parts);

// A check of ranks over MPI has two rounds: what TCP has shown is printed before MPI is tried.
enum class Round { kOnly, kBeforeMpi, kMpi };

// Ends a round: rank 0 prints what all have found, and all learn its verdict. A worker that does not reach the others
// prints its own findings.
CheckOutcome Conclude(const CheckParts& parts, CheckFindings findings, const v1::ProcessReport& own, Meeting& meeting,
                      Round round = Round::kOnly);

// Ends a check with only this worker's findings, and prints them. Unless it has found a problem itself, the verdict is
// `why`: the reason why the others' findings are not known.
CheckOutcome ConcludeAlone(const CheckParts& parts, CheckFindings findings, const v1::ProcessReport& own,
                           const absl::Status& why = absl::OkStatus());

// Dials the addresses of all links at the same time, so that any number of addresses that do not answer costs one
// deadline. A link that fails gets the error and the advice to a person; one that has an error keeps it.
std::vector<DialResult> DialLinks(Contact contact, v1::ProcessReport& report);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_TOPOLOGY_CHECK_H_
