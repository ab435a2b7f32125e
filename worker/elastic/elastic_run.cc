#include "worker/elastic/elastic_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_origin.h"
#include "common/base/status.h"
#include "common/job/bucket_map.h"
#include "common/job/job_spec.h"
#include "common/job/leaf_shares.h"
#include "worker/elastic/loss_check.h"
#include "worker/exchange/star/shard_reach.h"
#include "worker/train/run_history.h"

namespace starring {
namespace {

// Whether another generation may get on after this error, or is to show whether the job has it on any worker. All
// others are this process's own, and would come back.
bool IsTrouble(const absl::Status& status) {
  if (OriginOf(status).kind != ErrorOrigin::Kind::kProcess) return true;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

// The agreement of a run whatever its workers are.
absl::StatusOr<std::string> AgreementOf(const ElasticRun& run) {
  const WorkerOptions& options = *run.options;
  JobSpec job{.optimizer = options.optimizer,
              .schedule = options.schedule,
              .sum_order = options.sum_order,
              .deterministic = options.IsDeterministic(),
              .micro_batches = static_cast<int>(options.micro_batches),
              .layout = run.network->layout(),
              .agreed_flags = AgreedWorkerFlags(options)};
  // The agreement has the curve's number of steps, which follows from the size of the data and from --epochs.
  if (job.schedule.kind == ScheduleKind::kCosine && job.schedule.total_steps == 0) {
    job.schedule.total_steps = StepsPerEpoch(options, run.data->train.count) * options.epochs;
  }
  job.agreed_flags.insert(job.agreed_flags.end(), run.facts.begin(), run.facts.end());
  ASSIGN_OR_RETURN(job.buckets, BucketMap::Create({.element_count = job.layout.element_count(),
                                                   .bucket_bytes = options.bucket_bytes,
                                                   .world_size = options.BucketWorldSize()}));
  return SerializeAgreement(job);
}

absl::Status CheckLossesFit(const WorkerOptions& options, int64_t end_step) {
  if (!options.record_losses || end_step <= kHistoryLossesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--record_losses: each snapshot of an elastic run has the loss of every step before it, of ",
                   kHistoryLossesMax, " steps at most, and this run has ", end_step, ": drop the flag"));
}

std::string ReporterSentence(const WorkerOptions& options) {
  return absl::StrCat("reports the run from here on",
                      options.record.empty()
                          ? "; the run's record is not written, because this worker was started without --record: give "
                            "that to every worker, or let this one leave (SIGTERM) when one that has it is in"
                          : "");
}

// For this worker's log: why the generation before has ended, and where the run goes on. `trained`: the first step that
// this worker has not trained.
std::string ChangeSentence(const GenerationOrder& next, int64_t trained) {
  const int64_t step = next.generation.first_step;
  const size_t workers = next.generation.workers.size();
  return absl::StrCat(next.cause, "; the run goes ",
                      trained > step ? absl::StrCat("back from step ", trained, " to") : "on at", " step ", step,
                      " with ", workers, workers == 1 ? " worker" : " workers");
}

}  // namespace

absl::Status RunElastic(const ElasticRun& run) {
  WorkerOptions& options = *run.options;
  const int64_t end_step = EndStep(options, run.data->train.count);
  RETURN_IF_ERROR(CheckLossesFit(options, end_step));
  ASSIGN_OR_RETURN(std::string agreement, AgreementOf(run));
  WorkerMember member({.coordinator = options.coordinator,
                       .security = options.security,
                       .run_id = options.run_id,
                       .agreement = std::move(agreement),
                       .steps_per_epoch = StepsPerEpoch(options, run.data->train.count),
                       .first_step = run.first_step,
                       .end_step = end_step,
                       .trial_leaf_seconds = run.trial_leaf_seconds,
                       .join_deadline = options.join_deadline,
                       .stall_report = options.stall_report,
                       .state = run.state,
                       .asked_to_leave = run.stop_requested,
                       .reach = [&](const std::vector<std::string>& shards) { return Reach(shards, options.security); },
                       .say = run.say});
  LossCheck losses;
  absl::Status trouble;
  bool reports = false;  // what the run has come to
  int64_t trained = run.first_step;
  while (true) {
    absl::StatusOr<std::optional<GenerationOrder>> order = member.Next(trouble);
    if (absl::IsCancelled(order.status())) {
      run.say("has left the run");
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(order.status());
    if (!order->has_value()) return absl::OkStatus();
    const GenerationOrder& next = **order;
    options.rank = next.rank;
    options.world_size = static_cast<int>(next.generation.workers.size());
    options.servers = next.servers;
    options.run_id = next.run_id;
    const auto leaves = static_cast<int>(std::ranges::count(next.generation.leaf_owners, next.rank));
    losses.Forget(next.generation.first_step);
    if (next.generation.number > 1) run.say(ChangeSentence(next, trained));
    // It may have joined with other flags than the worker before it.
    const bool reported_before = std::exchange(reports, next.rank == 0);
    if (reports && !reported_before && next.generation.number > 1) run.say(ReporterSentence(options));
    const Segment segment{.number = next.generation.number,
                          .first_step = next.generation.first_step,
                          .from_snapshot = next.from_snapshot,
                          .ends_run = next.ends_run,
                          .snapshot_every = next.generation.snapshot_every,
                          .leaf_owners = next.generation.leaf_owners,
                          .stop = [&] { return member.told_to_stop(); },
                          .on_step =
                              [&](int64_t step, double seconds, double compute) {
                                trained = step + 1;
                                member.OnStep(step, seconds, compute, leaves);
                              },
                          .on_leaf = [&] { member.OnLeaf(); },
                          .is_over = [&] { return member.superseded(); },
                          .check_loss = [&](int64_t step, double loss) { return losses.Check(step, loss); }};
    const absl::StatusOr<TrainResult> result = run.train(segment);
    trouble = result.status();
    if (result.ok() && !result->segment_over) {
      // All steps are done. The run goes on only if a shard died before it could tell the coordinator.
      ASSIGN_OR_RETURN(const bool has_ended, member.AwaitEnd());
      if (!has_ended) continue;
      return result->reported;
    }
    if (result.ok() || IsTrouble(trouble)) continue;
    // Another generation would fail here in the same way, so this worker leaves, and the others go on.
    member.Fail(trouble);
    return trouble;
  }
}

}  // namespace starring
