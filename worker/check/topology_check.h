// The check of a star, of a ring and of ranks over TCP, which check.cc chooses from, and what both need. Internal to
// worker/check.
#ifndef STARRING_WORKER_CHECK_TOPOLOGY_CHECK_H_
#define STARRING_WORKER_CHECK_TOPOLOGY_CHECK_H_

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "proto/starring/v1/check.pb.h"
#include "worker/check/check.h"
#include "worker/check/check_table.h"
#include "worker/check/meeting.h"

namespace starring {

CheckOutcome CheckStar(const CheckParts& parts, v1::ProcessReport report);
CheckOutcome CheckRing(const CheckParts& parts, v1::ProcessReport report);
CheckOutcome CheckMesh(const CheckParts& parts, v1::ProcessReport report);

// The findings before any report.
CheckFindings EmptyFindings(const CheckParts& parts, CheckFindings::Topology topology);

// Ends a check after this worker has put its report. Rank 0 prints what all have found and announces the verdict; the
// others await it, and print their own findings if it does not come. In a ring in which TCP connects all ranks, rank 0
// prints that first, and all ranks call `try_mpi`, which adds to a report. `try_mpi` is null for a star.
CheckOutcome Conclude(const CheckParts& parts, CheckFindings findings, v1::ProcessReport own, Meeting& meeting,
                      const std::function<void(v1::ProcessReport&)>& try_mpi);

// Ends a check with only this worker's findings, and prints them.
CheckOutcome ConcludeAlone(const CheckParts& parts, CheckFindings findings, const v1::ProcessReport& own);

// The advice to a person about an address that cannot be dialled.
std::string WayOut(int error_number, CheckFindings::Topology topology);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_TOPOLOGY_CHECK_H_
