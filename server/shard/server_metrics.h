// The numbers that a server shows with --metrics_port: bytes, how long contributions wait for the last worker, how long
// sums take, and for which worker the others wait.
//
// Thread safety: one thread, the server's. Any thread may read the numbers.
#ifndef STARRING_SERVER_SHARD_SERVER_METRICS_H_
#define STARRING_SERVER_SHARD_SERVER_METRICS_H_

#include <cstdint>
#include <vector>

#include "common/metrics/metrics.h"

namespace starring {

class ServerMetrics {
 public:
  // `metrics` outlives it.
  explicit ServerMetrics(Metrics* metrics);

  void OnJob(int world_size);
  // The contribution of `rank` arrived `seconds` after the bucket's first one of that step.
  void OnContribution(int rank, double seconds);
  // All contributions were there, and sum and optimizer have run.
  struct Sum {
    int last_rank = -1;        // the others had waited for its contribution; -1: not known
    double queue_seconds = 0;  // from the first contribution to the last
    double sum_seconds = 0;
    int64_t steps_complete = 0;
  };
  void OnSum(const Sum& sum);
  void OnBytes(int64_t received, int64_t sent);  // totals

 private:
  struct Worker {
    Metrics::Counter* late_seconds;
    Metrics::Counter* last;
  };

  Metrics& metrics_;
  Metrics::Counter* const received_bytes_;
  Metrics::Counter* const sent_bytes_;
  Metrics::Counter* const sums_;
  Metrics::Counter* const sum_seconds_;
  Metrics::Counter* const queue_seconds_;
  Metrics::Gauge* const steps_;
  std::vector<Worker> workers_;
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_SERVER_METRICS_H_
