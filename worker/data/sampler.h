// Decides which samples are in the global batch of a step, and which of them are this rank's.
//
// Each epoch visits every sample once. Global batch k of an epoch is order[k * global_batch, ...); the last one is
// smaller if global_batch does not divide sample_count, and is used all the same. A batch of n samples is divided among
// the ranks contiguously: rank r of N takes positions [n * r / N, n * (r + 1) / N), which may be none. There is no
// overlap, no padding and no repetition. The micro-batches of a job are cut in the same way (common/job/leaf_shares.h):
// here they are ranks, too.
//
// The order of epoch e is 0 .. sample_count - 1 itself (kSequential), or a permutation (kShuffled) by the Fisher-Yates
// shuffle of Durstenfeld (CACM 1964, algorithm 235; Knuth, TAOCP 2, 3.4.2, algorithm P), whose word for position i is
// word i mod 4 of the Philox block i / 4 (common/arithmetic/philox.h):
//
//   order[i] = i for all i
//   for i = sample_count - 1 down to 1:
//     word = Philox4x32(counter = {low 32 bits of i / 4, high 32 bits of i / 4, e, kShuffle << 24},
//                       key = {low 32 bits of seed, high 32 bits of seed})[i mod 4]
//     swap order[i] and order[(word * (i + 1)) >> 32]
//
// tests/worker/data/sampler_peer_test.py computes the same in Python.
//
// Thread safety: Plan belongs to one thread; const methods from any.
#ifndef STARRING_WORKER_DATA_SAMPLER_H_
#define STARRING_WORKER_DATA_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "common/arithmetic/philox.h"

namespace starring {

struct BatchPlan {
  int64_t step = 0;  // over the whole run
  int64_t epoch = 0;
  int64_t global_count = 0;      // samples in the global batch
  int64_t first_sample = 0;      // this rank's first position in the global batch
  std::vector<int64_t> samples;  // this rank's samples, indices into the data set; may be empty
};

class Sampler {
 public:
  enum class Order { kShuffled, kSequential };
  struct Options {
    int64_t sample_count = 0;
    int64_t global_batch = 0;
    int rank = 0;
    int world_size = 1;
    uint64_t seed = 0;
    Order order = Order::kShuffled;  // kSequential for evaluation
  };
  // REQUIRES: 1 <= sample_count < 2^32, global_batch >= 1, 0 <= rank < world_size.
  explicit Sampler(const Options& options);

  int64_t steps_per_epoch() const;

  // The numbers of samples, without 0, that the ranks may get in a step; descending.
  std::vector<int64_t> ShareSizes() const;
  int64_t local_batch_max() const { return ShareSizes().front(); }

  // REQUIRES: step >= 0. Costs O(sample_count) if `step` is in another epoch than the last call's, otherwise
  // O(local batch).
  BatchPlan Plan(int64_t step) { return Plan(step, options_.rank); }
  // The same for another rank. REQUIRES: 0 <= rank < world_size.
  BatchPlan Plan(int64_t step, int rank);

  // The shuffled order of `epoch`: RandomOrder of (seed, kShuffle, epoch).
  static std::vector<int64_t> Permutation(int64_t sample_count, uint64_t seed, int64_t epoch);

 private:
  Options options_;
  int64_t epoch_ = -1;                // the epoch that permutation_ is of
  std::vector<int64_t> permutation_;  // empty with kSequential
};

// The numbers 0 .. count - 1 in the order of the shuffle above. REQUIRES: 0 <= count < 2^32.
std::vector<int64_t> RandomOrder(int64_t count, const RandomKey& key);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_SAMPLER_H_
