#include "worker/train/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/error_origin.h"
#include "common/base/limits.h"
#include "common/base/not_written.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/job/generation.h"
#include "common/job/job_spec.h"
#include "common/job/leaf_shares.h"
#include "common/security/sha256.h"
#include "worker/checkpoint/checkpointer.h"
#include "worker/checkpoint/warm_start.h"
#include "worker/data/loader.h"
#include "worker/data/sampler.h"
#include "worker/model/quality.h"
#include "worker/step/in_flight_buckets.h"
#include "worker/train/ranks_agree.h"
#include "worker/train/run_buckets.h"
#include "worker/train/run_history.h"
#include "worker/train/stop_request.h"

namespace starring {
namespace {

// The first steps make operations, fill caches and open connections, so their times say nothing about later steps.
constexpr int64_t kWarmupStepsMax = 10;
constexpr absl::Duration kStragglerInterval = absl::Minutes(1);
static_assert(2 + StragglerWatch::kShared * kWorldSizeMax <= kSumValuesMax);  // the values of one vote

// The part of `count` samples that belongs to `rank`, divided as the sampler divides a batch.
ElementRange PartOf(int64_t count, int rank, int world_size) {
  return {count * rank / world_size, count * (rank + 1) / world_size};
}

// The leaves that this worker computes, in the order in which it does; none without --micro_batches.
std::vector<int> LeavesOf(const JobSpec& job) {
  std::vector<int> leaves;
  if (job.micro_batches == 0) return leaves;
  for (const LeafRange& node : ShareOf(job.rank, LeafOwnersOf(job))) {
    for (int leaf = node.begin; leaf < node.end; ++leaf) leaves.push_back(leaf);
  }
  return leaves;
}

class Trainer {
 public:
  explicit Trainer(const TrainOptions& options)
      : options_(options),
        segment_(options_.segment),
        worker_(*options.worker),
        data_(*options.data),
        network_(*options.network),
        exchange_(*options.exchange),
        training_step_(*options.step),
        steps_per_epoch_(StepsPerEpoch(worker_, data_.train.count)),
        end_step_(EndStep(worker_, data_.train.count)),
        checkpoints_({.steps_per_epoch = steps_per_epoch_,
                      .every_epochs = worker_.saves_at_end_alone ? std::numeric_limits<int64_t>::max()
                                                                 : worker_.checkpoint_every_epochs,
                      .every_steps = worker_.checkpoint_every_steps}),
        progress_({.style = options.progress,
                   .out = stdout,
                   .epochs = worker_.epochs,
                   .steps_per_epoch = steps_per_epoch_,
                   .end_step = end_step_,
                   .loss = network_.loss()}),
        buckets_({.worker = &worker_, .buckets = options.buckets, .exchange = &exchange_, .step = &training_step_}),
        straggler_watch_(worker_.world_size) {}

  absl::StatusOr<TrainResult> Run();

 private:
  absl::Status RunToEnd();
  absl::StatusOr<JobSpec> DescribeJob();
  absl::Status StartExchange();
  Sampler::Options TrainSampler() const;
  Sampler::Options TestSampler() const;
  absl::Status PlanEveryShape();
  absl::StatusOr<Normalization> MeasureValues();
  absl::Status StartSteps();
  absl::Status TrainSteps();
  absl::Status TrainStep();
  void NameStraggler();
  void TakeFinished();
  absl::Status FinishEpoch();
  absl::Status Evaluate(std::span<double, 3> sums, QualityCounts* counts);
  absl::Status CountQuality(const Batch& batch, QualityCounts* counts);
  absl::Status TakeQuality(QualityCounts& counts, double loss_sum, double correct);
  absl::Status MeasureQuality();
  absl::Status KeepBest(double test_loss);
  absl::Status AgreeOnBest();
  absl::Status SaveCheckpoint();
  absl::Status SaveBest();
  absl::Status AverageBuffers();
  absl::Status SumLosses();
  absl::Status FinishRun();
  absl::Status CheckParameters();
  absl::Status GatherUse();

  // A snapshot has the history besides parameters and state. The first function restores that of the first step; the
  // second submits that of step_.
  absl::Status RestoreHistory();
  absl::Status SubmitHistory();
  bool HasSnapshot(int64_t step) const {
    return segment_.snapshot_every > 0 && IsSnapshotStep(step, segment_.snapshot_every, steps_per_epoch_);
  }
  // Whether the segment may be saved, or stop, before `step`. No generation goes back behind a checkpoint.
  bool MayPauseAt(int64_t step) const { return segment_.snapshot_every == 0 || HasSnapshot(step); }
  // Whether there is a checkpoint of `step`, the next or the last one.
  bool SavesAt(int64_t step) const { return (checkpoints_.IsDue(step) || checkpoint_is_due_) && MayPauseAt(step); }
  // Whether the epoch that ended before step_ has been evaluated.
  bool IsEvaluated() const { return !history_.epochs.empty() && history_.epochs.back().epoch == epoch(); }

  // Tells stall reports what this worker is doing outside its steps. In a step, the timer tells them.
  void Enter(WorkPhase phase) {
    if (options_.state != nullptr) options_.state->Enter(phase, std::chrono::steady_clock::now());
  }
  const Layout& layout() const { return network_.layout(); }
  // The losses of a step and the results of a test must not depend on the number of workers (--micro_batches).
  bool has_leaves() const { return worker_.micro_batches > 0; }
  int64_t epoch() const { return (step_ - 1) / steps_per_epoch_; }  // of the step that has just finished
  // Whether no epoch of the last --early_stop was better than those before.
  bool HasConverged() const {
    const BestEpoch& best = checkpointer_->best();
    return worker_.early_stop > 0 && best.epoch > 0 && step_ / steps_per_epoch_ - best.epoch >= worker_.early_stop;
  }
  // After `step_count` steps an epoch ends, or the run in the middle of one.
  bool EndsEpoch(int64_t step_count) const { return step_count % steps_per_epoch_ == 0 || step_count == end_step_; }

  const TrainOptions options_;
  const Segment& segment_;
  const WorkerOptions& worker_;
  const TrainAndTest& data_;
  Network& network_;
  GradientExchange& exchange_;
  TrainingStep& training_step_;
  const int64_t steps_per_epoch_;
  const int64_t end_step_;
  const CheckpointSchedule checkpoints_;

  Normalization normalization_;
  std::vector<int> leaves_;  // that this worker computes, in this order; empty without --micro_batches
  std::unique_ptr<Loader> train_loader_;
  Progress progress_;
  RunBuckets buckets_;
  std::unique_ptr<Checkpointer> checkpointer_;  // after progress_: its destructor may have a warning to print
  std::optional<StepTimer> timer_;
  StragglerWatch straggler_watch_;
  absl::Time next_straggler_ = absl::InfinitePast();
  ProcessorUse processor_use_;
  int64_t first_step_ = 0;  // of this process
  int64_t first_measured_step_ = 0;

  int64_t step_ = 0;                // the next one
  bool checkpoint_is_due_ = false;  // since a step at which the segment could not be saved
  bool best_is_due_ = false;        // a checkpoint of the best epoch, which has just ended
  absl::Time epoch_begin_;
  std::vector<FinishedStep> finished_;  // not taken by TakeFinished yet
  // The run so far. Its sum of losses, and its losses from losses_summed_ on, are over this rank's samples.
  RunHistory history_;
  size_t losses_summed_ = 0;
  TrainResult result_;
};

absl::StatusOr<TrainResult> Trainer::Run() {
  const absl::Status status = RunToEnd();
  if (!status.ok()) {
    // The other ranks wait for this one's messages. Abort tells them the reason now; without it they would find out at
    // their deadlines, and not why.
    exchange_.Abort(status);
    return status;
  }
  return std::move(result_);
}

absl::Status Trainer::RunToEnd() {
  RETURN_IF_ERROR(StartExchange());
  ASSIGN_OR_RETURN(normalization_, MeasureValues());
  checkpointer_->set_model({.layer_file = options_.layer_file,
                            .height = data_.train.height,
                            .width = data_.train.width,
                            .channels = data_.train.channels,
                            .takes_numbers = data_.train.type == FieldType::kNumbers,
                            .outputs = data_.train.outputs(),
                            .mean = normalization_.mean,
                            .deviation = normalization_.deviation,
                            .class_names = data_.class_names});
  RETURN_IF_ERROR(StartSteps());
  RETURN_IF_ERROR(TrainSteps());
  if (!result_.segment_over) return FinishRun();
  result_.next_step = step_;
  RETURN_IF_ERROR(checkpointer_->AwaitSnapshot(&exchange_));
  return exchange_.snapshots()->Leave();
}

// The job as the flags and the segment have it, without the state of a checkpoint. Gives the checkpointer the facts
// that decide the job's numbers.
absl::StatusOr<JobSpec> Trainer::DescribeJob() {
  JobSpec job{.rank = worker_.rank,
              .world_size = worker_.world_size,
              .first_step = segment_.first_step.value_or(0),
              .optimizer = worker_.optimizer,
              .schedule = worker_.schedule,
              .sum_order = worker_.sum_order,
              .deterministic = worker_.IsDeterministic(),
              .micro_batches = static_cast<int>(worker_.micro_batches),
              .leaf_owners = segment_.leaf_owners,
              .layout = layout(),
              .agreed_flags = AgreedWorkerFlags(worker_),
              .owners_have_parameters = segment_.from_snapshot,
              .join_deadline = worker_.join_deadline,
              .exchange_deadline = worker_.exchange_deadline};
  // Facts are compared as flags are, so that a rank that differs is refused by name.
  std::ranges::copy(options_.facts, std::back_inserter(job.agreed_flags));
  Facts deciding = options_.machine_facts;
  if (options_.device_facts != nullptr) {
    RETURN_IF_ERROR(PlanEveryShape());
    ASSIGN_OR_RETURN(const Facts facts, options_.device_facts());
    std::ranges::copy(facts, std::back_inserter(job.agreed_flags));
    std::ranges::copy(facts, std::back_inserter(deciding));
  }
  std::ranges::copy(options_.facts, std::back_inserter(deciding));
  // The owners know steps but not epochs, so they receive the end of a cosine in steps.
  if (job.schedule.kind == ScheduleKind::kCosine && job.schedule.total_steps == 0) {
    job.schedule.total_steps = steps_per_epoch_ * worker_.epochs;
    deciding.emplace_back("total_steps", absl::StrCat(job.schedule.total_steps));
  }
  checkpointer_->set_facts(std::move(deciding));
  RETURN_IF_ERROR(ValidateSchedule(job.schedule));
  return job;
}

absl::Status Trainer::StartExchange() {
  Enter(WorkPhase::kStart);
  const std::span<float> parameters = training_step_.initial_parameters();
  network_.InitializeParameters(worker_.seed, parameters);
  // The folder is checked before the ranks meet, so that a wrong one ends this rank at once and not after the join.
  ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create({.worker = &worker_,
                                                        .network = &network_,
                                                        .buckets = &buckets_.current(),
                                                        .writer = options_.checkpoint_writer,
                                                        .steps_per_epoch = steps_per_epoch_,
                                                        .end_step = end_step_,
                                                        .gather_optimizer_state =
                                                            [this](std::span<const std::span<float>> state) {
                                                              return training_step_.GatherOptimizerState(state);
                                                            },
                                                        .warn =
                                                            [this](const std::string& text) {
                                                              if (worker_.rank == 0) progress_.Message(text);
                                                            },
                                                        .goes_on = segment_.number > 1,
                                                        .leaves_writes = segment_.number > 0,
                                                        .on_wait = segment_.on_leaf,
                                                        .default_dir = options_.default_dir}));
  ASSIGN_OR_RETURN(JobSpec job, DescribeJob());
  result_.total_steps = end_step_;
  std::vector<std::vector<float>> state;
  if (worker_.resume && !job.owners_have_parameters) {
    // Every rank reads the checkpoint, since each needs the buffers. The exchange compares the first steps.
    ASSIGN_OR_RETURN(job.first_step, checkpointer_->Restore(parameters, &state));
    job.optimizer_state.assign(state.begin(), state.end());
    result_.resumed_from_step = job.first_step;
    result_.resume_notes = checkpointer_->resume_notes();
    if (segment_.first_step.value_or(job.first_step) != job.first_step) {
      return absl::InvalidArgumentError(absl::StrCat("the newest checkpoint in ", worker_.checkpoint_dir,
                                                     " is of step ", job.first_step, ", the run began at step ",
                                                     *segment_.first_step, ": start the whole job again"));
    }
  }
  // A later step has the parameters of a checkpoint or of the owners.
  if (options_.warm_start != nullptr && job.first_step == 0 && !job.owners_have_parameters) {
    ASSIGN_OR_RETURN(const std::vector<std::string> lines, options_.warm_start->Apply(&network_, parameters));
    for (const std::string& line : lines) {
      if (worker_.rank == 0) progress_.Message(line);
    }
  }
  step_ = job.first_step;
  leaves_ = LeavesOf(job);
  RETURN_IF_ERROR(buckets_.Plan(end_step_ - step_, checkpointer_.get(), &job));
  RETURN_IF_ERROR(exchange_.Start(job, parameters));
  if (job.owners_have_parameters) RETURN_IF_ERROR(RestoreHistory());
  if (worker_.early_stop > 0 || worker_.save_best) RETURN_IF_ERROR(AgreeOnBest());
  return training_step_.StartOptimizer(job);
}

// Each rank has read a checkpoint, and their disks may differ. Rank 0's best epoch decides, as its parameters do:
// otherwise some ranks would end or save alone.
absl::Status Trainer::AgreeOnBest() {
  const BestEpoch mine = worker_.rank == 0 ? checkpointer_->best() : BestEpoch{};
  std::array<double, 2> values = {static_cast<double>(mine.epoch), mine.test_loss};
  RETURN_IF_ERROR(exchange_.Sum(SumPurpose::kCheckpoint, values));
  checkpointer_->set_best({.epoch = static_cast<int64_t>(values[0]), .test_loss = values[1]});
  return absl::OkStatus();
}

absl::Status Trainer::RestoreHistory() {
  ASSIGN_OR_RETURN(const std::vector<double> values, exchange_.snapshots()->FetchSideValues());
  ASSIGN_OR_RETURN(history_, FromValues(values, network_.statistics_size()));
  // FromValues has checked that there are as many statistics as the buffers have values.
  std::span<const float> next = history_.statistics;
  for (const NetworkBuffer& buffer : network_.buffers()) {
    RETURN_IF_ERROR(network_.WriteBuffer(buffer, next.first(buffer.values.size())));
    next = next.subspan(buffer.values.size());
  }
  return absl::OkStatus();
}

// Before the evaluation at the end of an epoch, which a generation that begins there makes again.
absl::Status Trainer::SubmitHistory() {
  if (worker_.rank != 0) return absl::OkStatus();
  const TraceSpan span(options_.track, "history", {.step = step_});
  history_.epoch_seconds = absl::ToDoubleSeconds(SteadyNow() - epoch_begin_);
  history_.statistics.clear();
  for (const NetworkBuffer& buffer : network_.buffers()) {
    std::vector<float> values(buffer.values.size());
    RETURN_IF_ERROR(network_.ReadBuffer(buffer, values));
    history_.statistics.insert(history_.statistics.end(), values.begin(), values.end());
  }
  exchange_.snapshots()->SubmitSideValues(step_, ToValues(history_));
  return absl::OkStatus();
}

// With leaves the parts of a batch are the leaves, of which the loader takes this worker's.
Sampler::Options Trainer::TrainSampler() const {
  return {.sample_count = data_.train.count,
          .global_batch = worker_.global_batch,
          .rank = has_leaves() ? 0 : worker_.rank,
          .world_size = has_leaves() ? static_cast<int>(worker_.micro_batches) : worker_.world_size,
          .seed = worker_.seed};
}

// Every batch is divided among the ranks; with leaves, whole batches are, so that the same are computed by any of them.
Sampler::Options Trainer::TestSampler() const {
  const int divided_by = has_leaves() ? 1 : worker_.world_size;
  return {.sample_count = data_.test.count,
          .global_batch = kEvaluationBatch * divided_by,
          .rank = has_leaves() ? 0 : worker_.rank,
          .world_size = divided_by,
          .order = Sampler::Order::kSequential};
}

// The ranks compare the engines that their devices chose for each shape. A rank meets only the batch sizes of its own
// shares, so each rank plans for the sizes of all ranks: otherwise their lists would differ.
absl::Status Trainer::PlanEveryShape() {
  for (const int64_t batch : Sampler(TrainSampler()).ShareSizes()) RETURN_IF_ERROR(network_.PlanTraining(batch));
  for (const int64_t batch : Sampler(TestSampler()).ShareSizes()) RETURN_IF_ERROR(network_.PlanEvaluation(batch));
  return absl::OkStatus();
}

absl::StatusOr<Normalization> Trainer::MeasureValues() {
  if (options_.normalization.has_value()) return *options_.normalization;
  if (worker_.normalize == Normalize::kNone || data_.train.type == FieldType::kNumbers) {
    return NormalizationOf(data_.train, worker_.normalize);
  }
  // Each rank reads only its part of the pixels. The sums are integers, so the result does not depend on the division.
  const ElementRange part = PartOf(data_.train.count, worker_.rank, worker_.world_size);
  std::vector<double> sums = PixelSums(data_.train, part.begin, part.end);
  RETURN_IF_ERROR(SumInParts(SumPurpose::kPixels, sums, &exchange_));
  return NormalizationFromSums(sums);
}

absl::Status Trainer::StartSteps() {
  first_step_ = step_;
  // At most half of the steps are warm-up, so that a short run has a summary too.
  first_measured_step_ =
      step_ + std::min(std::max(kWarmupStepsMax, buckets_.trial_step_count()), (end_step_ - step_) / 2);
  // From here on the loader's threads, if it has any, fill batches, while Begin below prepares the step.
  ASSIGN_OR_RETURN(train_loader_, Loader::Create({.dataset = &data_.train,
                                                  .sampler = TrainSampler(),
                                                  .parts = leaves_,
                                                  .normalization = normalization_,
                                                  .augment = worker_.augment,
                                                  .format = training_step_.batch_format(),
                                                  .threads = worker_.loader_threads,
                                                  .prefetch_depth = worker_.prefetch_depth,
                                                  .first_step = step_,
                                                  .end_step = end_step_,
                                                  .trace = options_.trace,
                                                  .memory = training_step_.batch_memory()}));
  timer_.emplace(first_measured_step_ - step_, options_.track, options_.state);
  return training_step_.Begin({.normalization = normalization_, .timer = &*timer_, .end_step = end_step_});
}

absl::Status Trainer::TrainSteps() {
  StopVote vote(worker_.world_size, step_, &exchange_,
                {.rank = worker_.rank,
                 .count = StragglerWatch::kShared,
                 .give = [this](std::span<double> mine) { straggler_watch_.Share(mine); },
                 .take =
                     [this](int64_t steps, std::span<const double> all) {
                       straggler_watch_.Take(steps, all);
                       NameStraggler();
                     }});
  epoch_begin_ = SteadyNow() - absl::Seconds(history_.epoch_seconds);
  // The generation before ended between the last step of an epoch and the end of its evaluation.
  if (segment_.from_snapshot && EndsEpoch(step_) && !IsEvaluated()) RETURN_IF_ERROR(FinishEpoch());
  checkpoint_is_due_ = segment_.from_snapshot && checkpointer_->IsOverdue(checkpoints_, step_);
  bool stops = false;  // at the next step at which the segment may pause
  result_.stopped_early = segment_.ends_run && step_ < end_step_;
  while (step_ < end_step_ && !result_.stopped_early && !HasConverged()) {
    // Evaluations and checkpoints have paused the measurement. Resume has no effect while it goes on.
    if (step_ >= first_measured_step_) processor_use_.Resume();
    timer_->BeginStep();
    if (options_.state != nullptr) options_.state->set_step(step_);
    // The vote waits for the other ranks' messages, as a bucket does. If it were not counted, that time would be
    // missing from every step.
    timer_->Enter(StepPart::kExposedExchange);
    ASSIGN_OR_RETURN(const bool stop, vote.Agree(step_, segment_.stop()));
    timer_->Enter(StepPart::kOther);
    // The ranks have voted before the same step, so they all stop with the same parameters.
    stops = stops || stop;
    if (stops && step_ != segment_.first_step && MayPauseAt(step_)) {
      result_.segment_over = HasSnapshot(step_);
      result_.stopped_early = !result_.segment_over;
      break;
    }
    const absl::Time step_begin = SteadyNow();
    RETURN_IF_ERROR(TrainStep());
    ++step_;
    const absl::Duration step_time = SteadyNow() - step_begin;
    RETURN_IF_ERROR(buckets_.AfterStep(step_time, step_));
    segment_.on_step(step_, absl::ToDoubleSeconds(step_time), timer_->compute_seconds());
    if (HasSnapshot(step_)) RETURN_IF_ERROR(SubmitHistory());
    RETURN_IF_ERROR(checkpointer_->PollSnapshot(&exchange_));
    // The end of the epoch comes before the checkpoint of the same step, which then has the averaged statistics.
    if (EndsEpoch(step_)) RETURN_IF_ERROR(FinishEpoch());
    // The last step's checkpoint is FinishRun's, which all ranks wait for.
    const bool saves = SavesAt(step_);
    checkpoint_is_due_ = !saves && (checkpoint_is_due_ || checkpoints_.IsDue(step_));
    // The best epoch's comes first: a checkpoint that says which epoch was the best must not be there without it.
    if (std::exchange(best_is_due_, false)) RETURN_IF_ERROR(SaveBest());
    if (step_ != end_step_ && saves) RETURN_IF_ERROR(SaveCheckpoint());
  }
  processor_use_.Pause();
  result_.best = checkpointer_->best();
  result_.converged = !result_.stopped_early && step_ < end_step_ && HasConverged();
  if (result_.segment_over) return training_step_.Settle(&finished_);
  if (!result_.stopped_early) return absl::OkStatus();
  // The last step before the end of an epoch has settled; a step before which the run was stopped has not.
  RETURN_IF_ERROR(training_step_.Settle(&finished_));
  RETURN_IF_ERROR(SumLosses());
  // The checkpoint of a stop needs averaged statistics. At the end of an epoch FinishEpoch has averaged them.
  return EndsEpoch(step_) ? absl::OkStatus() : AverageBuffers();
}

absl::Status Trainer::TrainStep() {
  const TraceSpan span(options_.track, "step", {.step = step_});
  RETURN_IF_ERROR(training_step_.Run(step_, train_loader_.get(), &finished_));
  if (EndsEpoch(step_ + 1) || SavesAt(step_ + 1) || buckets_.MayChangeAfterNextStep()) {
    // This exchange is counted as part of the step, because no later step overlaps with it.
    RETURN_IF_ERROR(training_step_.Settle(&finished_));
  }
  timer_->EndStep();
  // Where GPUs wait for each other, the steps of all ranks take equally long, and a rank that shares no step votes for
  // none.
  if (training_step_.host_awaits_exchange()) straggler_watch_.AddStep(timer_->part_seconds());
  for (const FinishedStep& done : finished_) RETURN_IF_ERROR(segment_.check_loss(done.step, done.loss.loss_sum));
  TakeFinished();
  return absl::OkStatus();
}

// In the live line and for the run record; at most once a minute.
void Trainer::NameStraggler() {
  // All ranks have the same numbers, so only rank 0 shows and records them.
  const absl::Time now = SteadyNow();
  if (worker_.rank != 0 || now < next_straggler_) return;
  const std::optional<Straggler> straggler = straggler_watch_.Find();
  progress_.Note(straggler.has_value() ? DescribeStraggler(*straggler) : "");
  if (!straggler.has_value()) return;
  next_straggler_ = now + kStragglerInterval;
  RecordStraggler(*straggler, step_, &result_.stragglers);
}

void Trainer::TakeFinished() {
  // Observers are called after every step, also if no loss has arrived: they add up where the time went.
  for (RunObserver* const observer : options_.observers) {
    observer->OnStep({.finished = finished_, .part_seconds = timer_->part_seconds(), .exchange = &exchange_});
  }
  for (const FinishedStep& done : finished_) {
    history_.epoch_loss_sum += done.loss.loss_sum;
    history_.epoch_samples += done.global_count;
    const absl::Time now = SteadyNow();
    progress_.Step(done, now);
    if (worker_.record_losses) {
      history_.losses.push_back({.step = done.step,
                                 .seconds = history_.seconds + absl::ToDoubleSeconds(now - epoch_begin_),
                                 .loss = done.loss.loss_sum / static_cast<double>(done.global_count)});
    }
  }
  finished_.clear();
}

absl::Status Trainer::AverageBuffers() {
  // Every rank has normalised its own samples by their own mean and variance. Running statistics are linear in those of
  // the batches, so their mean over the ranks is the result that one worker would have from the means over the ranks.
  // With leaves every rank has added the statistics of all.
  if (worker_.world_size == 1 || has_leaves()) return absl::OkStatus();
  for (const NetworkBuffer& buffer : network_.buffers()) {
    std::vector<float> mine(buffer.values.size());
    RETURN_IF_ERROR(network_.ReadBuffer(buffer, mine));
    // The sum is in double and in the order of ranks, so that every rank gets the same bits.
    std::vector<double> values(mine.begin(), mine.end());
    RETURN_IF_ERROR(SumInParts(SumPurpose::kRunningStatistics, values, &exchange_));
    for (size_t i = 0; i < values.size(); ++i) mine[i] = static_cast<float>(values[i] / worker_.world_size);
    RETURN_IF_ERROR(network_.WriteBuffer(buffer, mine));
  }
  return absl::OkStatus();
}

// Adds the batch that was evaluated last.
absl::Status Trainer::CountQuality(const Batch& batch, QualityCounts* counts) {
  const std::vector<int64_t>& samples = batch.plan.samples;
  std::vector<float> outputs(samples.size() * static_cast<size_t>(network_.outputs()));
  RETURN_IF_ERROR(network_.ReadOutputs(outputs));
  // The batch itself may have the numbers of its samples alone.
  std::vector<int32_t> labels;
  std::vector<float> targets;
  for (const int64_t sample : samples) {
    if (data_.test.target == TargetType::kClass) labels.push_back(data_.test.labels[static_cast<size_t>(sample)]);
    const auto first = data_.test.targets.begin() + sample * data_.test.target_values;
    targets.insert(targets.end(), first, first + data_.test.target_values);
  }
  if (data_.test.target == TargetType::kClass) {
    counts->Add(samples, outputs, labels);
  } else {
    counts->Add(samples, outputs, targets);
  }
  return absl::OkStatus();
}

// Adds this rank's part of the test set to `sums`: the loss, the number of correct answers, the number of samples; and
// to `counts`, unless null.
absl::Status Trainer::Evaluate(std::span<double, 3> sums, QualityCounts* counts) {
  const TraceSpan span(options_.track, "evaluate");
  const Sampler::Options sampler = TestSampler();
  const int64_t batch_count = Sampler(sampler).steps_per_epoch();
  const ElementRange mine =
      has_leaves() ? PartOf(batch_count, worker_.rank, worker_.world_size) : ElementRange{0, batch_count};
  // This loader has no trace, since the whole evaluation is one span, and has memory of its own, which the step copies.
  // It lives for one evaluation, so that its threads take no core from training.
  ASSIGN_OR_RETURN(const std::unique_ptr<Loader> batches, Loader::Create({.dataset = &data_.test,
                                                                          .sampler = sampler,
                                                                          .normalization = normalization_,
                                                                          .format = training_step_.batch_format(),
                                                                          .threads = worker_.loader_threads,
                                                                          .prefetch_depth = worker_.prefetch_depth,
                                                                          .first_step = mine.begin,
                                                                          .end_step = mine.end}));
  std::vector<double> losses(static_cast<size_t>(batch_count)), correct(losses.size());
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    Enter(WorkPhase::kEvaluation);  // again for every batch: only an evaluation that stops is a stall
    segment_.on_leaf();
    if (segment_.is_over()) {
      return WithOrigin(absl::UnavailableError("the generation is over"), {.kind = ErrorOrigin::Kind::kExchange});
    }
    ASSIGN_OR_RETURN(const Batch* batch, batches->Next());
    // The last batch may have no sample for this rank.
    if (batch->plan.samples.empty()) continue;
    ASSIGN_OR_RETURN(const LossResult loss, training_step_.Evaluate(*batch));
    if (counts != nullptr) RETURN_IF_ERROR(CountQuality(*batch, counts));
    losses[static_cast<size_t>(i)] = loss.loss_sum;
    correct[static_cast<size_t>(i)] = static_cast<double>(loss.correct);
    sums[2] += static_cast<double>(batch->plan.samples.size());
  }
  Enter(WorkPhase::kExchange);  // a worker that waits for slower ones is not stuck
  if (has_leaves()) {
    // Zeros from all ranks but one make the sum a gather. Everyone then has all losses, to be added in the same order.
    RETURN_IF_ERROR(SumInParts(SumPurpose::kEvaluation, losses, &exchange_));
  }
  sums[0] += std::accumulate(losses.begin(), losses.end(), 0.0);
  sums[1] += std::accumulate(correct.begin(), correct.end(), 0.0);
  return absl::OkStatus();
}

absl::Status Trainer::FinishEpoch() {
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - epoch_begin_);
  history_.seconds += seconds;
  processor_use_.Pause();
  // The evaluation reads the statistics, and every rank must evaluate its part with the same network.
  RETURN_IF_ERROR(AverageBuffers());
  // Losses are summed once an epoch and not once a step, because every sum is a barrier.
  RETURN_IF_ERROR(SumLosses());
  // One sum carries all four values, because each sum costs a round trip through all ranks.
  std::array<double, 4> sums = {history_.epoch_loss_sum, 0, 0, 0};  // training loss, test loss, correct, tested
  // More is counted at the run's end alone: it may be MiB, which the ranks have to add up.
  std::optional<QualityCounts> counts;
  if (step_ == end_step_) counts.emplace(network_.loss(), network_.outputs(), data_.test.count);
  RETURN_IF_ERROR(Evaluate(std::span(sums).subspan<1, 3>(), counts.has_value() ? &*counts : nullptr));
  // With leaves every rank has the losses of all.
  if (has_leaves() && worker_.rank > 0) sums[0] = sums[1] = 0;
  RETURN_IF_ERROR(exchange_.Sum(SumPurpose::kEpoch, sums));
  CHECK_EQ(static_cast<int64_t>(sums[3]), data_.test.count);  // the ranks agreed on the data at Start
  if (counts.has_value()) RETURN_IF_ERROR(TakeQuality(*counts, sums[1], sums[2]));
  const EpochSummary summary{.epoch = epoch(),
                             .train_loss = sums[0] / static_cast<double>(history_.epoch_samples),
                             .test_loss = sums[1] / sums[3],
                             .test_accuracy = sums[2] / sums[3],
                             .seconds = seconds,
                             .samples_per_second = static_cast<double>(history_.epoch_samples) / seconds};
  history_.epochs.push_back(summary);
  progress_.EpochDone(summary);
  RETURN_IF_ERROR(KeepBest(summary.test_loss));
  if (step_ != end_step_ && HasConverged()) RETURN_IF_ERROR(MeasureQuality());
  if (result_.quality.has_value()) progress_.QualityDone(*result_.quality);
  for (RunObserver* const observer : options_.observers) observer->OnEpoch(summary, step_);
  // The next epoch's clock starts after the evaluation and the observers, whose time belongs to no epoch.
  history_.epoch_loss_sum = 0;
  history_.epoch_samples = 0;
  epoch_begin_ = SteadyNow();
  return absl::OkStatus();
}

// Adds the ranks' counts up.
absl::Status Trainer::TakeQuality(QualityCounts& counts, double loss_sum, double correct) {
  RETURN_IF_ERROR(SumInParts(SumPurpose::kEvaluation, counts.counts(), &exchange_));
  result_.quality = counts.Result(loss_sum, correct, MeanVariance(data_.test.targets, data_.test.outputs()));
  return absl::OkStatus();
}

// The same for an epoch that has turned out to be the last one after its evaluation.
absl::Status Trainer::MeasureQuality() {
  QualityCounts counts(network_.loss(), network_.outputs(), data_.test.count);
  std::array<double, 3> sums = {};
  RETURN_IF_ERROR(Evaluate(sums, &counts));
  if (has_leaves() && worker_.rank > 0) sums[0] = 0;
  RETURN_IF_ERROR(exchange_.Sum(SumPurpose::kEpoch, sums));
  return TakeQuality(counts, sums[0], sums[1]);
}

// Every rank computes the same best epoch, because all ranks have the same losses. An epoch that --max_steps has cut
// does not count: a resumed run completes it. An elastic run keeps no best epoch, which its next generation would lack.
absl::Status Trainer::KeepBest(double test_loss) {
  if (step_ % steps_per_epoch_ != 0 || segment_.snapshot_every > 0) return absl::OkStatus();
  const BestEpoch& best = checkpointer_->best();
  // A loss that is not finite ends the run elsewhere, and is no minimum.
  if (!std::isfinite(test_loss) || (best.epoch > 0 && test_loss >= best.test_loss)) return absl::OkStatus();
  checkpointer_->set_best({.epoch = epoch() + 1, .test_loss = test_loss});
  best_is_due_ = worker_.save_best;
  return absl::OkStatus();
}

absl::Status Trainer::SaveBest() {
  Enter(WorkPhase::kCheckpoint);
  const absl::Time begin = SteadyNow();
  processor_use_.Pause();
  RETURN_IF_ERROR(checkpointer_->SaveBest(step_, training_step_.parameters(), &exchange_));
  epoch_begin_ += SteadyNow() - begin;
  return absl::OkStatus();
}

// Called between two steps, when no bucket is in flight. Its time does not count as the epoch's.
absl::Status Trainer::SaveCheckpoint() {
  Enter(WorkPhase::kCheckpoint);
  const absl::Time begin = SteadyNow();
  processor_use_.Pause();
  // A checkpoint in the middle of an epoch needs the statistics of every rank too. They are averaged at the same steps
  // whether it is written or skipped, so a run that resumes there has the bits of a run that was never interrupted.
  if (!EndsEpoch(step_)) RETURN_IF_ERROR(AverageBuffers());
  const std::span<const float> parameters = training_step_.parameters();
  RETURN_IF_ERROR(HasSnapshot(step_) ? checkpointer_->SaveSnapshot(step_, parameters, &exchange_)
                                     : checkpointer_->SavePeriodic(step_, parameters, &exchange_));
  // The epoch's beginning is moved, so that its seconds and its rate exclude the checkpoint.
  epoch_begin_ += SteadyNow() - begin;
  return absl::OkStatus();
}

// Turns the losses of the last steps from sums over this rank's samples into sums over all ranks' samples. Each value
// is divided by the global batch already, so the sum is the mean.
absl::Status Trainer::SumLosses() {
  if (has_leaves()) return absl::OkStatus();  // they are of all samples already
  const std::span<StepLoss> losses = std::span(history_.losses).subspan(losses_summed_);
  std::vector<double> values(losses.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = losses[i].loss;
  RETURN_IF_ERROR(SumInParts(SumPurpose::kLosses, values, &exchange_));
  for (size_t i = 0; i < values.size(); ++i) losses[i].loss = values[i];
  losses_summed_ = history_.losses.size();
  return absl::OkStatus();
}

absl::Status Trainer::FinishRun() {
  result_.steps = step_ - first_step_;
  result_.next_step = step_;
  // The comparison comes before the checkpoint: parameters on which the ranks do not agree are not saved.
  RETURN_IF_ERROR(CheckParameters());
  // A resumed run that had nothing left to do would only save what it has read. A generation may have to save what the
  // one before it has trained.
  if (result_.steps > 0 || result_.stopped_early || segment_.from_snapshot) {
    // The ranks agree that it is not written, and end in good order: servers and peers have done their part.
    result_.reported = checkpointer_->SaveFinal(step_, training_step_.parameters(), &exchange_);
    if (!result_.reported.ok() && !IsNotWritten(result_.reported)) return result_.reported;
  }
  result_.step_summary = timer_->Summary();
  result_.gpu_exposed = training_step_.gpu_exposed();
  result_.exchange = exchange_.counters();
  RETURN_IF_ERROR(GatherUse());
  result_.checkpoint_saved = checkpointer_->is_saved();
  result_.checkpoint_dir = checkpointer_->dir();
  result_.best_saved_step = checkpointer_->best_saved_step();
  result_.generation = segment_.number;
  result_.epochs = history_.epochs;
  result_.losses = history_.losses;
  progress_.EndLine();
  // This rank's disk must not end what the others have trained to the end.
  result_.reported.Update(options_.report(result_));
  // Finish comes last, because the ranks cannot exchange anything after it.
  return exchange_.Finish();
}

absl::Status Trainer::CheckParameters() {
  result_.parameter_sha256 = Sha256Hex(std::as_bytes(training_step_.parameters()));
  result_.steps_per_epoch = steps_per_epoch_;
  result_.bucket_bytes = buckets_.current().bucket_bytes();
  result_.tried_buckets = buckets_.tried();
  // Equal parameters that are all NaN would agree too.
  RETURN_IF_ERROR(CheckFinite(layout(), step_, training_step_.parameters()));
  return CheckRanksAgree(result_.parameter_sha256, worker_.rank, worker_.world_size, &exchange_);
}

// Each rank writes its values to its own places and leaves zeros elsewhere, so the sum over ranks is a gather.
absl::Status Trainer::GatherUse() {
  static_assert(2 * kWorldSizeMax <= kSumValuesMax);
  const auto part_ms = [this](StepPart part) { return result_.step_summary.part_ms[static_cast<int>(part)]; };
  const auto rank = static_cast<size_t>(worker_.rank);
  std::vector<double> values(2 * static_cast<size_t>(worker_.world_size));
  if (training_step_.host_awaits_exchange()) {
    values[2 * rank] = part_ms(StepPart::kForward) + part_ms(StepPart::kBackward);
  }
  values[2 * rank + 1] = processor_use_.percent();
  RETURN_IF_ERROR(exchange_.Sum(SumPurpose::kWorkerUse, values));
  for (size_t i = 0; i < values.size(); i += 2) {
    result_.workers.push_back({.compute_ms = values[i], .cpu_percent = values[i + 1]});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainResult> Train(const TrainOptions& options) { return Trainer(options).Run(); }

}  // namespace starring
