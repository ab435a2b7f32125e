// A job for the exchange's tests: gradients that every rank can compute, and the parameters that must result, computed
// plainly from common/arithmetic/reduction_order.h and common/arithmetic/optimizer.h.
#ifndef STARRING_TESTS_WORKER_EXCHANGE_PEER_EXAMPLE_JOB_H_
#define STARRING_TESTS_WORKER_EXCHANGE_PEER_EXAMPLE_JOB_H_

#include <cstdint>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/job/job_spec.h"

namespace starring {

enum class GradientValues {
  kIntegers,  // small ones: their sums are exact in any order
  kAny,       // over 20 binary orders of magnitude: another order of summation gives other bits
};

struct ExampleJob {
  int64_t element_count = 0;
  int64_t bucket_bytes = 0;
  int world_size = 1;
  bool has_servers = false;
  GradientValues values = GradientValues::kAny;
  OptimizerConfig optimizer = {.momentum = 0.9f};
  SumOrder sum_order = SumOrder::kChain;
  int micro_batches = 0;  // JobSpec::micro_batches
  uint64_t seed = 1;

  // With a layout of one tensor. REQUIRES: element_count is a multiple of Layout::kAlignmentElements.
  JobSpec Spec(int rank) const;
  // For any element_count.
  BucketMap Buckets() const;

  std::vector<float> InitialParameters() const;
  // `leaf`: a rank, or a micro-batch.
  std::vector<float> Gradient(int leaf, int64_t step) const;
  // A rank's contributions to a step: a sum for each node of its share (common/job/leaf_shares.h).
  std::vector<std::vector<float>> Contributions(int rank, int64_t step) const;

  // The parameters that all ranks must have after `step_count` steps. `state`, if not null, takes the optimizer's
  // vectors.
  std::vector<float> Reference(int64_t step_count, std::vector<std::vector<float>>* state = nullptr) const;
};

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_EXCHANGE_PEER_EXAMPLE_JOB_H_
