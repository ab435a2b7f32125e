// A job for benchmarks and tests of the exchanges: its model is one tensor of any size.
#ifndef STARRING_BENCH_EXCHANGE_JOB_H_
#define STARRING_BENCH_EXCHANGE_JOB_H_

#include <cstdint>
#include <utility>

#include "common/base/check.h"
#include "common/job/job_spec.h"

namespace starring {

struct ExchangeJobOptions {
  int rank = 0;
  int world_size = 1;
  int64_t element_count = 1;
  int64_t bucket_bytes = 1 << 20;  // as --bucket_bytes of the worker
  SumOrder sum_order = SumOrder::kChain;
  int micro_batches = 0;
  bool has_servers = false;
  OptimizerConfig optimizer;
};

inline JobSpec MakeExchangeJob(const ExchangeJobOptions& options) {
  JobSpec job{.rank = options.rank,
              .world_size = options.world_size,
              .optimizer = options.optimizer,
              .sum_order = options.sum_order,
              .micro_batches = options.micro_batches};
  auto layout =
      Layout::Create({{.name = "weight", .dims = {options.element_count}, .torch_axes = {}, .torch_shape = {}}});
  CHECK_OK(layout);
  job.layout = *std::move(layout);
  auto buckets = BucketMap::Create({.element_count = job.layout.element_count(),
                                    .bucket_bytes = options.bucket_bytes,
                                    .world_size = options.has_servers ? 1 : options.world_size});
  CHECK_OK(buckets);
  job.buckets = *std::move(buckets);
  return job;
}

}  // namespace starring

#endif  // STARRING_BENCH_EXCHANGE_JOB_H_
