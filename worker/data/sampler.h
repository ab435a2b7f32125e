// Which samples are in the global batch of a step, and which of them are this rank's.
//
// Each epoch visits every sample once: a permutation of 0 .. count - 1 by Philox (seed, kShuffle, epoch). Global batch
// k of an epoch is permutation[k * global_batch, ...); the last one is smaller when count does not divide, and is kept.
// A batch of n samples is cut over ranks contiguously: rank r takes positions [n * r / N, n * (r + 1) / N). No overlap,
// no padding.
//
// Thread safety: const methods from any thread.
#ifndef STARRING_WORKER_DATA_SAMPLER_H_
#define STARRING_WORKER_DATA_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

namespace starring {

struct BatchPlan {
  int64_t step = 0;  // over the whole run
  int64_t epoch = 0;
  int64_t global_count = 0;      // samples in the global batch
  int64_t first_sample = 0;      // this rank's first position in the global batch
  std::vector<int64_t> samples;  // this rank's, indices into the data set
};

class Sampler {
 public:
  struct Options {
    int64_t sample_count = 0;
    int64_t global_batch = 0;
    int rank = 0;
    int world_size = 1;
    uint64_t seed = 0;
  };
  explicit Sampler(const Options& options);  // REQUIRES: all counts >= 1, rank < world_size

  int64_t steps_per_epoch() const;
  // Largest number of samples that any rank gets in a step.
  int64_t local_batch_max() const;
  // The permutation is computed when `step` enters another epoch than the last call's, O(sample_count).
  BatchPlan Plan(int64_t step);
  static std::vector<int64_t> Permutation(int64_t sample_count, uint64_t seed, int64_t epoch);

 private:
  Options options_;
  int64_t epoch_ = -1;
  std::vector<int64_t> permutation_;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_SAMPLER_H_
