#include "worker/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/security/sha256.h"
#include "common/status.h"
#include "common/steady_time.h"
#include "worker/checkpoint_schedule.h"
#include "worker/checkpointer.h"
#include "worker/data/loader.h"
#include "worker/data/sampler.h"
#include "worker/ranks_agree.h"
#include "worker/report/processor_use.h"
#include "worker/step/finite_check.h"
#include "worker/stop_request.h"

namespace starring {
namespace {

constexpr int64_t kWarmupStepsMax = 10;
constexpr absl::Duration kStragglerInterval = absl::Minutes(1);
static_assert(2 + StragglerWatch::kShared * kWorldSizeMax <= kSumValuesMax);  // what a vote carries

// The part of `count` that is `rank`'s, the cut of the sampler.
ElementRange PartOf(int64_t count, int rank, int world_size) {
  return {count * rank / world_size, count * (rank + 1) / world_size};
}

// Of batches of `global_batch` samples, of which the last may be smaller: the shares that a rank may have, largest
// first.
std::vector<int64_t> ShareSizes(int64_t count, int64_t global_batch, int world_size) {
  std::set<int64_t, std::greater<>> sizes;
  for (const int64_t batch : {std::min(count, global_batch), count % global_batch}) {
    sizes.insert({(batch + world_size - 1) / world_size, batch / world_size});
  }
  sizes.erase(0);
  return {sizes.begin(), sizes.end()};
}

int64_t EndStep(const WorkerOptions& worker, int64_t steps_per_epoch) {
  const int64_t end = steps_per_epoch * worker.epochs;
  return worker.max_steps > 0 ? std::min(end, worker.max_steps) : end;
}

class TrainerImpl final : public Trainer {
 public:
  explicit TrainerImpl(const Options& options)
      : worker_(*options.worker),
        data_(*options.data),
        network_(*options.network),
        exchange_(*options.exchange),
        buckets_(*options.buckets),
        training_step_(*options.step),
        stop_requested_(options.stop_requested),
        device_facts_(options.device_facts),
        style_(options.progress),
        observers_(options.observers),
        trace_(options.trace),
        track_(options.track),
        state_(options.state),
        steps_per_epoch_((data_.train.count + worker_.global_batch - 1) / worker_.global_batch),
        end_step_(EndStep(worker_, steps_per_epoch_)),
        checkpoints_({.steps_per_epoch = steps_per_epoch_,
                      .every_epochs = worker_.checkpoint_every_epochs,
                      .every_steps = worker_.checkpoint_every_steps}),
        straggler_watch_(worker_.world_size) {}

  absl::StatusOr<TrainResult> Run() override;

 private:
  void Enter(WorkPhase phase);
  absl::Status StartExchange();
  absl::Status PlanEveryShape();
  absl::StatusOr<Normalization> MeasurePixels();
  absl::Status TrainToEnd();
  absl::Status TrainStep();
  void NameStraggler();
  void TakeFinished();
  absl::Status Evaluate(std::span<double, 3> sums);
  absl::Status FinishEpoch();
  absl::Status SaveCheckpoint();
  absl::Status AverageBuffers();
  absl::Status SumLosses();
  absl::Status GatherUse();
  absl::Status CheckParameters();

  const Layout& layout() const { return network_.layout(); }
  int64_t epoch() const { return (step_ - 1) / steps_per_epoch_; }  // of the step that was just finished
  // Steps that end an epoch, or the run in the middle of one.
  bool EndsEpoch(int64_t step_count) const { return step_count % steps_per_epoch_ == 0 || step_count == end_step_; }

  const WorkerOptions& worker_;
  const TrainAndTest& data_;
  Network& network_;
  GradientExchange& exchange_;
  const BucketMap& buckets_;
  TrainingStep& training_step_;
  const std::function<bool()> stop_requested_;
  const std::function<std::vector<std::pair<std::string, std::string>>()> device_facts_;
  const Progress::Style style_;
  const std::vector<RunObserver*> observers_;
  Trace* const trace_;
  TraceTrack* const track_;
  ProgressState* const state_;
  const int64_t steps_per_epoch_;
  const int64_t end_step_;
  const CheckpointSchedule checkpoints_;

  std::unique_ptr<Loader> train_loader_;
  Loader::Options loader_options_;  // of training
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Checkpointer> checkpointer_;  // goes first: it may have a last warning to print
  std::optional<StepTimer> timer_;
  StragglerWatch straggler_watch_;
  absl::Time next_straggler_ = absl::InfinitePast();
  ProcessorUse processor_use_;
  int64_t first_measured_step_ = 0;

  int64_t step_ = 0;  // the next one
  absl::Time epoch_begin_;
  int64_t epoch_samples_ = 0;           // global, of this process in this epoch
  double epoch_loss_sum_ = 0;           // this rank's
  std::vector<FinishedStep> finished_;  // not yet taken
  double seconds_before_epoch_ = 0;     // of training
  size_t losses_summed_ = 0;            // of result_.losses, over ranks; the rest are this rank's sums
  TrainResult result_;
};

absl::StatusOr<TrainResult> TrainerImpl::Run() {
  absl::Status status = TrainToEnd();
  if (!status.ok()) {
    exchange_.Abort(status);
    return status;
  }
  return std::move(result_);
}

// For whoever asks where this worker is. In a step, the timer says it.
void TrainerImpl::Enter(WorkPhase phase) {
  if (state_ != nullptr) state_->Enter(phase, std::chrono::steady_clock::now());
}

absl::Status TrainerImpl::StartExchange() {
  Enter(WorkPhase::kStart);
  const std::span<float> parameters = training_step_.initial_parameters();
  network_.InitializeParameters(worker_.seed, parameters);
  ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create({.worker = &worker_,
                                                        .network = &network_,
                                                        .buckets = &buckets_,
                                                        .steps_per_epoch = steps_per_epoch_,
                                                        .gather_optimizer_state =
                                                            [this](std::span<const std::span<float>> state) {
                                                              return training_step_.GatherOptimizerState(state);
                                                            },
                                                        .warn =
                                                            [this](const std::string& text) {
                                                              if (worker_.rank == 0) progress_->Message(text);
                                                            }}));
  JobSpec job{.rank = worker_.rank,
              .world_size = worker_.world_size,
              .optimizer = worker_.optimizer,
              .schedule = worker_.schedule,
              .layout = layout(),
              .buckets = buckets_,
              .agreed_flags = worker_.AgreedFlags(),
              .join_deadline = worker_.join_deadline,
              .exchange_deadline = worker_.exchange_deadline};
  for (auto& fact : DatasetFacts(data_)) job.agreed_flags.push_back(std::move(fact));
  if (device_facts_ != nullptr) {
    RETURN_IF_ERROR(PlanEveryShape());
    for (auto& fact : device_facts_()) job.agreed_flags.push_back(std::move(fact));
  }
  if (job.schedule.kind == ScheduleKind::kCosine && job.schedule.total_steps == 0) {
    job.schedule.total_steps = steps_per_epoch_ * worker_.epochs;
  }
  RETURN_IF_ERROR(ValidateSchedule(job.schedule));
  result_.total_steps = end_step_;
  std::vector<std::vector<float>> state;
  if (worker_.resume) {
    ASSIGN_OR_RETURN(job.first_step, checkpointer_->Restore(parameters, &state));
    job.optimizer_state.assign(state.begin(), state.end());
  }
  step_ = job.first_step;
  RETURN_IF_ERROR(exchange_.Start(job, parameters));
  return training_step_.StartOptimizer(job);
}

// A rank knows only its own shares, but the engines of every rank's are compared: so it plans for all of them.
absl::Status TrainerImpl::PlanEveryShape() {
  for (const int64_t batch : ShareSizes(data_.train.count, worker_.global_batch, worker_.world_size)) {
    RETURN_IF_ERROR(network_.PlanTraining(batch));
  }
  for (const int64_t batch : ShareSizes(data_.test.count, kEvaluationBatch * worker_.world_size, worker_.world_size)) {
    RETURN_IF_ERROR(network_.PlanEvaluation(batch));
  }
  return absl::OkStatus();
}

absl::StatusOr<Normalization> TrainerImpl::MeasurePixels() {
  const ElementRange part = PartOf(data_.train.count, worker_.rank, worker_.world_size);
  std::vector<double> sums = PixelSums(data_.train, part.begin, part.end);
  RETURN_IF_ERROR(exchange_.Sum(SumPurpose::kPixels, sums));
  return NormalizationFromSums(sums);
}

absl::Status TrainerImpl::TrainToEnd() {
  progress_ = std::make_unique<Progress>(Progress::Options{.style = style_,
                                                           .out = stdout,
                                                           .epochs = worker_.epochs,
                                                           .steps_per_epoch = steps_per_epoch_,
                                                           .end_step = end_step_});
  RETURN_IF_ERROR(StartExchange());
  ASSIGN_OR_RETURN(const Normalization normalization, MeasurePixels());
  loader_options_ = {.dataset = &data_.train,
                     .sampler = {.sample_count = data_.train.count,
                                 .global_batch = worker_.global_batch,
                                 .rank = worker_.rank,
                                 .world_size = worker_.world_size,
                                 .seed = worker_.seed},
                     .normalization = normalization,
                     .augment = worker_.augment ? Loader::Augment::kCropFlip : Loader::Augment::kNone,
                     .format = training_step_.batch_format(),
                     .threads = worker_.loader_threads,
                     .prefetch_depth = worker_.prefetch_depth,
                     .first_step = step_,
                     .end_step = end_step_,
                     .trace = trace_,
                     .memory = training_step_.batch_memory()};
  ASSIGN_OR_RETURN(train_loader_, Loader::Create(loader_options_));
  const int64_t first_step = step_;
  first_measured_step_ = step_ + std::min(kWarmupStepsMax, (end_step_ - step_) / 2);
  loader_options_.trace = nullptr;   // evaluation is one span
  loader_options_.memory = nullptr;  // its batches are copied where they are needed
  timer_.emplace(first_measured_step_ - step_, track_, state_);
  RETURN_IF_ERROR(training_step_.Begin({.normalization = normalization, .timer = &*timer_, .end_step = end_step_}));
  StopVote vote(worker_.world_size, step_, &exchange_,
                {.rank = worker_.rank,
                 .count = StragglerWatch::kShared,
                 .give = [this](std::span<double> mine) { straggler_watch_.Share(mine); },
                 .take =
                     [this](int64_t steps, std::span<const double> all) {
                       straggler_watch_.Take(steps, all);
                       NameStraggler();
                     }});
  epoch_begin_ = SteadyNow();
  while (step_ < end_step_) {
    if (step_ >= first_measured_step_) processor_use_.Resume();
    timer_->BeginStep();
    if (state_ != nullptr) state_->set_step(step_);
    // The vote waits for messages as a bucket does, and where the network is slow for as long: time not counted here
    // would be missing in every step's.
    timer_->Enter(StepPart::kExposedExchange);
    ASSIGN_OR_RETURN(const bool stop, vote.Agree(step_, stop_requested_()));
    timer_->Enter(StepPart::kOther);
    if (stop) {
      result_.stopped_early = true;
      break;
    }
    RETURN_IF_ERROR(TrainStep());
    ++step_;
    if (EndsEpoch(step_)) RETURN_IF_ERROR(FinishEpoch());
    if (step_ != end_step_ && checkpoints_.IsDue(step_)) RETURN_IF_ERROR(SaveCheckpoint());
  }
  result_.steps = step_ - first_step;
  result_.next_step = step_;
  processor_use_.Pause();
  if (result_.stopped_early) {
    RETURN_IF_ERROR(training_step_.Settle(&finished_));
    RETURN_IF_ERROR(SumLosses());
    if (!EndsEpoch(step_)) RETURN_IF_ERROR(AverageBuffers());
  }
  RETURN_IF_ERROR(CheckParameters());
  if (result_.steps > 0 || result_.stopped_early) {
    RETURN_IF_ERROR(checkpointer_->SaveFinal(step_, training_step_.parameters(), &exchange_));
  }
  result_.step_summary = timer_->Summary();
  result_.exchange = exchange_.counters();
  RETURN_IF_ERROR(GatherUse());
  result_.checkpoint_saved = checkpointer_->is_saved();
  return exchange_.Finish();
}

absl::Status TrainerImpl::TrainStep() {
  const TraceSpan span(track_, "step", {.step = step_});
  RETURN_IF_ERROR(training_step_.Run(step_, train_loader_.get(), &finished_));
  if (EndsEpoch(step_ + 1) || checkpoints_.IsDue(step_ + 1)) {
    // Part of the step: nothing follows to hide it behind.
    RETURN_IF_ERROR(training_step_.Settle(&finished_));
  }
  timer_->EndStep();
  straggler_watch_.AddStep(timer_->part_seconds());
  TakeFinished();
  return absl::OkStatus();
}

// Once a minute at most, in the live line and for the run record.
void TrainerImpl::NameStraggler() {
  const absl::Time now = SteadyNow();
  if (worker_.rank != 0 || now < next_straggler_) return;
  const std::optional<Straggler> straggler = straggler_watch_.Find();
  progress_->Note(straggler.has_value() ? DescribeStraggler(*straggler) : "");
  if (!straggler.has_value()) return;
  next_straggler_ = now + kStragglerInterval;
  RecordStraggler(*straggler, step_, &result_.stragglers);
}

void TrainerImpl::TakeFinished() {
  for (RunObserver* const observer : observers_) {
    observer->OnStep({.finished = finished_, .part_seconds = timer_->part_seconds(), .exchange = &exchange_});
  }
  for (const FinishedStep& done : finished_) {
    epoch_loss_sum_ += done.loss.loss_sum;
    epoch_samples_ += done.global_count;
    const absl::Time now = SteadyNow();
    if (worker_.record_losses) {
      result_.losses.push_back({.step = done.step,
                                .seconds = seconds_before_epoch_ + absl::ToDoubleSeconds(now - epoch_begin_),
                                .loss = done.loss.loss_sum / static_cast<double>(done.global_count)});
    }
    if (!progress_->WantsStep(now)) continue;
    const double count = std::max<double>(1, static_cast<double>(done.batch));
    progress_->Step({.step = done.step,
                     .global_count = done.global_count,
                     .loss = done.loss.loss_sum / count,
                     .accuracy = static_cast<double>(done.loss.correct) / count},
                    now);
  }
  finished_.clear();
}

absl::Status TrainerImpl::AverageBuffers() {
  // Every rank has normalised its own samples. The running statistics are linear in the batches', so their mean over
  // ranks is what one worker would have kept that saw the mean of the ranks' moments.
  if (worker_.world_size == 1) return absl::OkStatus();
  for (const NetworkBuffer& buffer : network_.buffers()) {
    std::vector<float> mine(buffer.values.size());
    RETURN_IF_ERROR(network_.ReadBuffer(buffer, mine));
    std::vector<double> values(mine.begin(), mine.end());
    RETURN_IF_ERROR(exchange_.Sum(SumPurpose::kRunningStatistics, values));
    for (size_t i = 0; i < values.size(); ++i) mine[i] = static_cast<float>(values[i] / worker_.world_size);
    RETURN_IF_ERROR(network_.WriteBuffer(buffer, mine));
  }
  return absl::OkStatus();
}

// This rank's part of the test set: loss sum, correct, count.
absl::Status TrainerImpl::Evaluate(std::span<double, 3> sums) {
  const TraceSpan span(track_, "evaluate");
  Loader::Options loader = loader_options_;
  loader.dataset = &data_.test;
  loader.sampler.sample_count = data_.test.count;
  loader.sampler.global_batch = kEvaluationBatch * worker_.world_size;
  loader.sampler.order = Sampler::Order::kSequential;
  loader.augment = Loader::Augment::kNone;
  loader.first_step = 0;
  loader.end_step = Sampler(loader.sampler).steps_per_epoch();
  ASSIGN_OR_RETURN(const std::unique_ptr<Loader> batches, Loader::Create(loader));
  for (int64_t i = 0; i < loader.end_step; ++i) {
    Enter(WorkPhase::kEvaluation);  // every batch anew: an evaluation that goes on is no stall
    ASSIGN_OR_RETURN(const Batch* batch, batches->Next());
    if (batch->plan.samples.empty()) continue;
    ASSIGN_OR_RETURN(const LossResult loss, training_step_.Evaluate(*batch));
    sums[0] += loss.loss_sum;
    sums[1] += static_cast<double>(loss.correct);
    sums[2] += static_cast<double>(batch->plan.samples.size());
  }
  return absl::OkStatus();
}

absl::Status TrainerImpl::FinishEpoch() {
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - epoch_begin_);
  seconds_before_epoch_ += seconds;
  processor_use_.Pause();
  RETURN_IF_ERROR(AverageBuffers());
  RETURN_IF_ERROR(SumLosses());
  std::array<double, 4> sums = {epoch_loss_sum_, 0, 0, 0};  // training loss, test loss, correct, tested
  RETURN_IF_ERROR(Evaluate(std::span(sums).subspan<1, 3>()));
  RETURN_IF_ERROR(exchange_.Sum(SumPurpose::kEpoch, sums));
  CHECK_EQ(static_cast<int64_t>(sums[3]), data_.test.count);  // the ranks have agreed on the data at Start
  const EpochSummary summary{.epoch = epoch(),
                             .train_loss = sums[0] / static_cast<double>(epoch_samples_),
                             .test_loss = sums[1] / sums[3],
                             .test_accuracy = sums[2] / sums[3],
                             .seconds = seconds,
                             .samples_per_second = static_cast<double>(epoch_samples_) / seconds};
  result_.epochs.push_back(summary);
  progress_->EpochDone(summary);
  for (RunObserver* const observer : observers_) observer->OnEpoch(summary, step_);
  epoch_loss_sum_ = 0;
  epoch_samples_ = 0;
  epoch_begin_ = SteadyNow();
  return absl::OkStatus();
}

// Between two steps, with no bucket in flight; its time is none of the epoch's.
absl::Status TrainerImpl::SaveCheckpoint() {
  Enter(WorkPhase::kCheckpoint);
  const absl::Time begin = SteadyNow();
  processor_use_.Pause();
  // In the middle of an epoch too the checkpoint has every rank's statistics. Whether one is written or not, they are
  // averaged at the same steps, so a run that resumes there goes on with the bits of one that was never cut.
  if (!EndsEpoch(step_)) RETURN_IF_ERROR(AverageBuffers());
  RETURN_IF_ERROR(checkpointer_->SavePeriodic(step_, training_step_.parameters(), &exchange_));
  epoch_begin_ += SteadyNow() - begin;
  return absl::OkStatus();
}

// What this rank's samples add to the mean losses of the last steps becomes what all ranks' samples do.
absl::Status TrainerImpl::SumLosses() {
  std::vector<StepLoss>& losses = result_.losses;
  while (losses_summed_ < losses.size()) {
    const size_t count = std::min<size_t>(losses.size() - losses_summed_, kSumValuesMax);
    const std::span<StepLoss> part = std::span(losses).subspan(losses_summed_, count);
    std::vector<double> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = part[i].loss;
    RETURN_IF_ERROR(exchange_.Sum(SumPurpose::kLosses, values));
    for (size_t i = 0; i < count; ++i) part[i].loss = values[i];
    losses_summed_ += count;
  }
  return absl::OkStatus();
}

// A sum in which every rank has places of its own, and zeros elsewhere, is a gather.
absl::Status TrainerImpl::GatherUse() {
  static_assert(2 * kWorldSizeMax <= kSumValuesMax);
  const auto part_ms = [this](StepPart part) { return result_.step_summary.part_ms[static_cast<int>(part)]; };
  const auto rank = static_cast<size_t>(worker_.rank);
  std::vector<double> values(2 * static_cast<size_t>(worker_.world_size));
  values[2 * rank] = part_ms(StepPart::kForward) + part_ms(StepPart::kBackward);
  values[2 * rank + 1] = processor_use_.percent();
  RETURN_IF_ERROR(exchange_.Sum(SumPurpose::kWorkerUse, values));
  for (size_t i = 0; i < values.size(); i += 2) {
    result_.workers.push_back({.compute_ms = values[i], .cpu_percent = values[i + 1]});
  }
  return absl::OkStatus();
}

absl::Status TrainerImpl::CheckParameters() {
  result_.parameter_sha256 = Sha256Hex(std::as_bytes(training_step_.parameters()));
  result_.steps_per_epoch = steps_per_epoch_;
  result_.bucket_bytes = buckets_.bucket_bytes();
  RETURN_IF_ERROR(CheckFinite(layout(), step_, training_step_.parameters()));
  return CheckRanksAgree(result_.parameter_sha256, worker_.rank, worker_.world_size, &exchange_);
}

}  // namespace

std::unique_ptr<Trainer> Trainer::Create(const Options& options) { return std::make_unique<TrainerImpl>(options); }

}  // namespace starring
