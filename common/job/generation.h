// A generation is a segment of an elastic run: from its first step on, these workers compute these leaves. Nobody joins
// or leaves it; who does begins the next one, from a snapshot (server/elastic/snapshot_store.h).
#ifndef STARRING_COMMON_JOB_GENERATION_H_
#define STARRING_COMMON_JOB_GENERATION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace starring {

struct Generation {
  int64_t number = 0;  // from 1
  int64_t first_step = 0;
  int64_t snapshot_every = 1;     // steps; see IsSnapshotStep
  std::vector<uint64_t> workers;  // their ids, by rank; rank 0, the oldest, reports
  std::vector<int> leaf_owners;   // by leaf the rank that computes it (common/job/leaf_shares.h)
  friend bool operator==(const Generation&, const Generation&) = default;
};

// Whether there is a snapshot of what update `step` - 1 left: every snapshot_every steps, and where an epoch ends.
inline bool IsSnapshotStep(int64_t step, int64_t snapshot_every, int64_t steps_per_epoch) {
  return step > 0 && (step % snapshot_every == 0 || step % steps_per_epoch == 0);
}

}  // namespace starring

#endif  // STARRING_COMMON_JOB_GENERATION_H_
