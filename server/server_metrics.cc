#include "server/server_metrics.h"

#include "absl/strings/str_cat.h"

namespace starring {

ServerMetrics::ServerMetrics(Metrics* metrics)
    : metrics_(*metrics),
      received_bytes_(metrics->AddCounter("starring_server_received_bytes_total", "gradients received")),
      sent_bytes_(metrics->AddCounter("starring_server_sent_bytes_total", "parameters sent")),
      sums_(metrics->AddCounter("starring_server_sums_total", "buckets that were summed and applied")),
      sum_seconds_(metrics->AddCounter("starring_server_sum_seconds_total", "time in these sums and the optimizer")),
      queue_seconds_(metrics->AddCounter("starring_server_queue_seconds_total",
                                         "from a bucket's first contribution of a step to its last, added up")),
      steps_(metrics->AddGauge("starring_server_steps_complete", "steps of the run that are over for all buckets")) {}

void ServerMetrics::OnJob(int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    const Metrics::Labels labels = {{"rank", absl::StrCat(rank)}};
    workers_.push_back(
        {.late_seconds = metrics_.AddCounter("starring_server_worker_late_seconds_total",
                                             "how long after the first contribution this worker's came", labels),
         .last = metrics_.AddCounter("starring_server_worker_last_total",
                                     "buckets whose other contributions waited for this worker's", labels)});
  }
}

void ServerMetrics::OnContribution(int rank, double seconds) { workers_[rank].late_seconds->Add(seconds); }

void ServerMetrics::OnSum(const Sum& sum) {
  workers_[sum.last_rank].last->Add(1);
  sums_->Add(1);
  sum_seconds_->Add(sum.sum_seconds);
  queue_seconds_->Add(sum.queue_seconds);
  steps_->Set(static_cast<double>(sum.steps_complete));
}

void ServerMetrics::OnBytes(int64_t received, int64_t sent) {
  received_bytes_->RaiseTo(static_cast<double>(received));
  sent_bytes_->RaiseTo(static_cast<double>(sent));
}

}  // namespace starring
