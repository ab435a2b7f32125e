// The owner of slices: sums contributions, applies the optimizer, seals the new parameters. Knows nothing of gRPC or
// MPI.
//
// One class, two ways in, because the sum is made in two places:
//   Contribute  star: whole contributions arrive in any order; when the last worker's is there the shard adds them in
//               reduction order and applies the optimizer in the same pass over memory, into a buffer of its own.
//   Apply       ring and local: the sum is already made (by the ring, or there is one worker); the caller lends the
//               parameters, which are updated in place.
//
// Thread safety: calls for different buckets may run at the same time; calls for one bucket are serialised inside.
#ifndef STARRING_COMMON_PARAMETER_SHARD_H_
#define STARRING_COMMON_PARAMETER_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout.h"
#include "common/learning_rate.h"
#include "common/optimizer.h"

namespace starring {

// The parameters of one slice after some step. Immutable while anybody holds it; the shard takes the memory back for a
// later step when the last holder lets go (that holder being a worker's reply, a reply can never change under a slow
// worker).
class SealedSlice {
 public:
  std::span<const float> parameters() const;
  int64_t step() const;  // the step whose update it contains; -1 for the initial parameters
};

// One worker's gradient of one slice, as bytes: little-endian float32 in pieces of any alignment and length. `keeper`
// keeps the bytes alive; the shard drops it once the sum is made.
struct Contribution {
  int worker = 0;
  int64_t step = 0;
  int bucket = 0;
  std::vector<std::span<const std::byte>> pieces;
  std::shared_ptr<const void> keeper;  // shared: the transport may hold the same message for a retry
};

class ParameterShard {
 public:
  struct Options {
    // slices[b]: what this owner owns of bucket b, ascending. Star: one range. Ring: one per block.
    std::vector<std::vector<ElementRange>> slices;
    int64_t element_count = 0;  // of the whole parameter vector
    int world_size = 1;
    int64_t first_step = 0;
    OptimizerConfig optimizer;
    LearningRateSchedule schedule;
  };
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Create(Options options);
  ~ParameterShard();

  // ... (the author of this class completes the contract: see the issue text in the helper's brief)
};

}  // namespace starring

#endif  // STARRING_COMMON_PARAMETER_SHARD_H_
