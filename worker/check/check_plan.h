// Who dials whom in a check, and how long each test may take, so that a check of any size ends in time.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_CHECK_CHECK_PLAN_H_
#define STARRING_WORKER_CHECK_CHECK_PLAN_H_

#include <vector>

#include "absl/time/time.h"

namespace starring {

// For all workers to say who and where they are; less with a shorter --join_deadline_s.
inline constexpr absl::Duration kGatherDeadline = absl::Seconds(20);
// For all tests of all workers, from then on.
inline constexpr absl::Duration kTestsDeadline = absl::Seconds(30);
// For one connection, and for one answer.
inline constexpr absl::Duration kDialDeadline = absl::Seconds(3);
inline constexpr absl::Duration kAnswerDeadline = absl::Seconds(5);

// The ranks that `rank` dials in a ring, ascending: all others up to 16 ranks; beyond, its neighbours, rank 0, and
// those at a distance of a power of two, which MPI's own collectives talk to.
std::vector<int> RingTargets(int rank, int world_size);

// Bandwidth is tested by one process at a time, rank after rank.
struct BandwidthPlan {
  double seconds = 0.1;  // of one test
  int rank_stride = 1;   // every so-manieth rank tests
};
// All tests together take at most 20 s, of kTestsDeadline. REQUIRES: both numbers >= 1.
BandwidthPlan PlanBandwidth(int tests_per_rank, int world_size);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_CHECK_PLAN_H_
