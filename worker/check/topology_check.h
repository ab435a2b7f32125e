// The two kinds of check behind check.h. Internal to worker/check.
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

// What is known before any report.
CheckFindings EmptyFindings(const CheckParts& parts, CheckFindings::Topology topology);

// The end of a check, when this worker has put its report: rank 0 prints what all have found and announces its verdict;
// the others await it, and print their own findings if it does not come. In a ring where TCP connects all, rank 0
// prints that, and all `try_mpi` first, which adds to a report; null for a star.
CheckOutcome Conclude(const CheckParts& parts, CheckFindings findings, v1::ProcessReport own, Meeting& meeting,
                      const std::function<void(v1::ProcessReport&)>& try_mpi);

// Prints what this worker alone has found.
CheckOutcome ConcludeAlone(const CheckParts& parts, CheckFindings findings, const v1::ProcessReport& own);

// What a person does about an address that cannot be dialled.
std::string WayOut(int error_number, CheckFindings::Topology topology);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_TOPOLOGY_CHECK_H_
