#include "worker/report/dashboards.h"

namespace starring {

WorkerMetrics::WorkerMetrics(Metrics* metrics)
    : steps_(metrics->AddCounter("starring_steps_total", "steps of this process whose loss is known")),
      samples_(metrics->AddCounter("starring_samples_total", "samples that this worker has trained on")),
      sent_bytes_(metrics->AddCounter("starring_exchange_sent_bytes_total", "gradients and parameters sent")),
      received_bytes_(
          metrics->AddCounter("starring_exchange_received_bytes_total", "gradients and parameters received")),
      step_(metrics->AddGauge("starring_step", "newest step of the run whose loss is known")),
      loss_(metrics->AddGauge("starring_loss", "mean loss of this worker's samples of that step")),
      epochs_(metrics->AddGauge("starring_epochs_finished", "epochs of the run that are over")),
      train_loss_(metrics->AddGauge("starring_train_loss", "mean loss over the last epoch, all workers")),
      test_accuracy_(metrics->AddGauge("starring_test_accuracy_ratio", "after the last epoch, all workers")),
      samples_per_second_(metrics->AddGauge("starring_samples_per_second", "in the last epoch, all workers")) {
  // The names are in the order of StepPart. Every series exists from the start, with 0, so that a query finds it before
  // the first step.
  constexpr std::array<const char*, kStepPartCount> kNames = {"data_wait",        "h2d",       "forward", "backward",
                                                              "exposed_exchange", "optimizer", "other"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    part_seconds_[i] =
        metrics->AddCounter("starring_step_seconds_total", "time in steps, by part", {{"part", kNames[i]}});
  }
}

// The trainer's thread calls this while the thread that answers HTTP reads the same metrics, which are atomic numbers.
void WorkerMetrics::OnStep(const StepReport& report) {
  for (size_t i = 0; i < part_seconds_.size(); ++i) part_seconds_[i]->Add(report.part_seconds[i]);
  // The exchange counts from its start; the metrics show the same totals.
  const ExchangeCounters counters = report.exchange->counters();
  sent_bytes_->RaiseTo(static_cast<double>(counters.bytes_sent));
  received_bytes_->RaiseTo(static_cast<double>(counters.bytes_received));
  // No step or several may have finished: on a GPU losses arrive some steps later. The gauges keep the newest.
  for (const FinishedStep& done : report.finished) {
    steps_->Add(1);
    samples_->Add(static_cast<double>(done.batch));
    step_->Set(static_cast<double>(done.step));
    loss_->Set(done.mean_loss());
  }
}

void WorkerMetrics::OnEpoch(const EpochSummary& summary, int64_t) {
  epochs_->Set(static_cast<double>(summary.epoch + 1));
  train_loss_->Set(summary.train_loss);
  test_accuracy_->Set(summary.test_accuracy);
  samples_per_second_->Set(summary.samples_per_second);
}

}  // namespace starring
