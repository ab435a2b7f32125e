#include "server/shard/server_metrics.h"

#include "absl/strings/str_cat.h"

namespace starring {

// These numbers exist, with the value 0, before there is a job. Those of the workers follow in OnJob, which knows how
// many workers there are.
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
    // All ranks share one name and differ in a label, so that one query of the monitor shows all workers next to each
    // other.
    const Metrics::Labels labels = {{"rank", absl::StrCat(rank)}};
    workers_.push_back(
        {.late_seconds = metrics_.AddCounter("starring_server_worker_late_seconds_total",
                                             "how long after the first contribution this worker's came", labels),
         .last = metrics_.AddCounter("starring_server_worker_last_total",
                                     "buckets whose other contributions waited for this worker's", labels)});
  }
}

// The first worker of a step adds next to nothing, the last one as much as the whole wait. So the rank whose number
// grows fastest is the one that the others wait for.
void ServerMetrics::OnContribution(int rank, double seconds) { workers_[rank].late_seconds->Add(seconds); }

void ServerMetrics::OnSum(const Sum& sum) {
  if (sum.last_rank >= 0) workers_[sum.last_rank].last->Add(1);
  sums_->Add(1);
  sum_seconds_->Add(sum.sum_seconds);
  queue_seconds_->Add(sum.queue_seconds);
  // The number of steps of the whole run: in a run that was resumed it does not begin at 0.
  steps_->Set(static_cast<double>(sum.steps_complete));
}

void ServerMetrics::OnBytes(int64_t received, int64_t sent) {
  // These are totals that the job counts anyway. So a call that was left out loses nothing: the next call makes up for
  // it.
  received_bytes_->RaiseTo(static_cast<double>(received));
  sent_bytes_->RaiseTo(static_cast<double>(sent));
}

}  // namespace starring
