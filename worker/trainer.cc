#include "worker/trainer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/bucket_map.h"
#include "common/check.h"
#include "common/non_finite.h"
#include "common/sha256.h"
#include "common/status.h"
#include "worker/checkpointer.h"
#include "worker/data/loader.h"
#include "worker/data/sampler.h"
#include "worker/stop_request.h"

namespace starring {
namespace {

constexpr int64_t kWarmupStepsMax = 10;

// The part of `count` that is `rank`'s, the cut of the sampler.
ElementRange PartOf(int64_t count, int rank, int world_size) {
  return {count * rank / world_size, count * (rank + 1) / world_size};
}

NetworkInput InputOf(const Batch& batch) {
  return {.images = batch.images.data(),
          .labels = batch.labels.data(),
          .batch = static_cast<int64_t>(batch.plan.samples.size())};
}

class TrainerImpl final : public Trainer {
 public:
  explicit TrainerImpl(const Options& options)
      : worker_(*options.worker),
        data_(*options.data),
        network_(*options.network),
        device_(*options.device),
        exchange_(*options.exchange),
        stop_requested_(options.stop_requested),
        style_(options.progress) {}

  absl::Status Prepare();
  absl::StatusOr<TrainResult> Run() override;

 private:
  absl::Status StartExchange();
  absl::StatusOr<Normalization> MeasurePixels();
  absl::Status TrainToEnd();
  absl::Status TrainStep();
  absl::Status AwaitBuckets(ElementRange range);
  absl::Status SubmitComplete(ElementRange layer);
  absl::Status CheckGradient(ElementRange range);
  absl::Status Evaluate(std::span<double, 3> sums);
  absl::Status FinishEpoch();
  absl::Status AverageBuffers();
  absl::Status CheckRanksAgree();

  // The parameters; until the exchange has started, the memory that it gets them from.
  std::span<const float> parameters() const {
    return parameters_ == nullptr ? exchange_.parameter_memory() : WholeOf(*parameters_);
  }
  std::span<float> gradients() { return gradients_ == nullptr ? exchange_.gradient_memory() : WholeOf(*gradients_); }
  std::span<float> WholeOf(DeviceBuffer& buffer) const {
    return {buffer.floats(), static_cast<size_t>(layout().element_count())};
  }
  const Layout& layout() const { return network_.layout(); }
  int64_t epoch() const { return (step_ - 1) / steps_per_epoch_; }  // of the step that was just finished

  const WorkerOptions& worker_;
  const TrainAndTest& data_;
  Network& network_;
  Device& device_;
  GradientExchange& exchange_;
  const std::function<bool()> stop_requested_;
  const Progress::Style style_;

  // Null if the exchange has such memory.
  std::unique_ptr<DeviceBuffer> parameters_;
  std::unique_ptr<DeviceBuffer> gradients_;
  BucketMap buckets_;
  std::vector<int64_t> submitted_step_;  // by bucket: the step between Submit and Await, or -1
  int next_bucket_ = 0;                  // the first one of this step that is not submitted
  std::unique_ptr<Loader> train_loader_;
  Loader::Options loader_options_;  // of training
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<Progress> progress_;
  std::optional<StepTimer> timer_;

  int64_t steps_per_epoch_ = 0;
  int64_t end_step_ = 0;
  int64_t step_ = 0;  // the next one
  absl::Time epoch_begin_;
  int64_t epoch_samples_ = 0;  // global, of this process in this epoch
  double epoch_loss_sum_ = 0;  // this rank's
  TrainResult result_;
};

absl::Status TrainerImpl::Prepare() {
  const int64_t element_count = layout().element_count();
  const int64_t bytes = element_count * static_cast<int64_t>(sizeof(float));
  ASSIGN_OR_RETURN(parameters_, device_.Allocate(bytes));
  ASSIGN_OR_RETURN(gradients_, device_.Allocate(bytes));
  ASSIGN_OR_RETURN(buckets_, BucketMap::Create({.element_count = element_count,
                                                .bucket_bytes = worker_.bucket_bytes,
                                                .world_size = worker_.world_size}));
  submitted_step_.assign(buckets_.bucket_count(), -1);
  steps_per_epoch_ = (data_.train.count + worker_.global_batch - 1) / worker_.global_batch;
  end_step_ = steps_per_epoch_ * worker_.epochs;
  if (worker_.max_steps > 0) end_step_ = std::min(end_step_, worker_.max_steps);
  return absl::OkStatus();
}

absl::StatusOr<TrainResult> TrainerImpl::Run() {
  absl::Status status = TrainToEnd();
  if (!status.ok()) {
    exchange_.Abort(status);
    return status;
  }
  return std::move(result_);
}

absl::Status TrainerImpl::StartExchange() {
  network_.InitializeParameters(worker_.seed, WholeOf(*parameters_));
  ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create({.worker = &worker_,
                                                        .network = &network_,
                                                        .buckets = &buckets_,
                                                        .steps_per_epoch = steps_per_epoch_,
                                                        .warn = [this](const std::string& text) {
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
  if (job.schedule.kind == ScheduleKind::kCosine && job.schedule.total_steps == 0) {
    job.schedule.total_steps = steps_per_epoch_ * worker_.epochs;
  }
  RETURN_IF_ERROR(ValidateSchedule(job.schedule));
  result_.total_steps = end_step_;
  std::vector<std::vector<float>> state;
  if (worker_.resume) {
    ASSIGN_OR_RETURN(job.first_step, checkpointer_->Restore(WholeOf(*parameters_), &state));
    job.optimizer_state.assign(state.begin(), state.end());
  }
  step_ = job.first_step;
  RETURN_IF_ERROR(exchange_.Start(job, WholeOf(*parameters_)));
  if (!exchange_.parameter_memory().empty()) parameters_.reset();
  if (!exchange_.gradient_memory().empty()) gradients_.reset();
  return absl::OkStatus();
}

absl::StatusOr<Normalization> TrainerImpl::MeasurePixels() {
  const ElementRange part = PartOf(data_.train.count, worker_.rank, worker_.world_size);
  std::vector<double> sums = PixelSums(data_.train, part.begin, part.end);
  RETURN_IF_ERROR(exchange_.Sum(sums));
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
                     .threads = worker_.loader_threads,
                     .prefetch_depth = worker_.prefetch_depth,
                     .first_step = step_,
                     .end_step = end_step_};
  ASSIGN_OR_RETURN(train_loader_, Loader::Create(loader_options_));
  const int64_t first_step = step_;
  timer_.emplace(std::min(kWarmupStepsMax, (end_step_ - step_) / 2));
  StopVote vote(worker_.world_size, step_, &exchange_);
  epoch_begin_ = absl::Now();
  while (step_ < end_step_) {
    ASSIGN_OR_RETURN(const bool stop, vote.Agree(step_, stop_requested_()));
    if (stop) {
      result_.stopped_early = true;
      break;
    }
    RETURN_IF_ERROR(TrainStep());
    ++step_;
    if (step_ % steps_per_epoch_ == 0 || step_ == end_step_) RETURN_IF_ERROR(FinishEpoch());
  }
  result_.steps = step_ - first_step;
  result_.next_step = step_;
  if (result_.stopped_early) {
    RETURN_IF_ERROR(AwaitBuckets({0, layout().element_count()}));
    RETURN_IF_ERROR(AverageBuffers());
    RETURN_IF_ERROR(checkpointer_->Save(step_, parameters(), &exchange_));
  }
  RETURN_IF_ERROR(CheckRanksAgree());
  result_.step_summary = timer_->Summary();
  result_.exchange = exchange_.counters();
  RETURN_IF_ERROR(exchange_.Finish());
  checkpointer_->Wait();
  return absl::OkStatus();
}

absl::Status TrainerImpl::TrainStep() {
  timer_->BeginStep();
  timer_->Enter(StepPart::kDataWait);
  ASSIGN_OR_RETURN(const Batch* batch, train_loader_->Next());
  CHECK_EQ(batch->plan.step, step_);
  const Network::TrainStep work{.input = InputOf(*batch),
                                .step = step_,
                                .first_sample = batch->plan.first_sample,
                                .loss_scale = 1.0f / static_cast<float>(batch->plan.global_count),
                                .parameters = parameters(),
                                .gradients = gradients()};

  timer_->Enter(StepPart::kForward);
  RETURN_IF_ERROR(network_.Forward(work, [this](int layer) { return AwaitBuckets(network_.LayerRange(layer)); }));
  // Buckets of gaps or of layers that no forward touches: none today, but Submit needs every bucket awaited.
  RETURN_IF_ERROR(AwaitBuckets({0, layout().element_count()}));
  timer_->Enter(StepPart::kBackward);
  next_bucket_ = 0;
  RETURN_IF_ERROR(network_.Backward(work, [this](int layer) { return SubmitComplete(network_.LayerRange(layer)); }));
  CHECK_EQ(next_bucket_, buckets_.bucket_count());
  if ((step_ + 1) % steps_per_epoch_ == 0 || step_ + 1 == end_step_) {
    RETURN_IF_ERROR(
        AwaitBuckets({0, layout().element_count()}));  // part of the step: nothing follows to hide it behind
  }
  const LossResult loss = network_.Result();
  epoch_loss_sum_ += loss.loss_sum;
  epoch_samples_ += batch->plan.global_count;
  timer_->EndStep();
  if (const absl::Time now = absl::Now(); progress_->WantsStep(now)) {
    const double count = std::max<double>(1, static_cast<double>(work.input.batch));
    progress_->Step({.step = step_,
                     .global_count = batch->plan.global_count,
                     .loss = loss.loss_sum / count,
                     .accuracy = static_cast<double>(loss.correct) / count},
                    now);
  }
  return absl::OkStatus();
}

absl::Status TrainerImpl::AwaitBuckets(ElementRange range) {
  if (range.size() == 0) return absl::OkStatus();
  // Parts nest: what is awaited inside forward is no forward. With one worker there is nobody to wait for: the time is
  // the optimizer's.
  const StepPart part = worker_.sync == Sync::kLocal ? StepPart::kOptimizer : StepPart::kExposedExchange;
  const StepPart outer = timer_->Enter(part);
  for (int b = buckets_.BucketOf(range.end - 1); b <= buckets_.BucketOf(range.begin); ++b) {
    if (submitted_step_[b] < 0) continue;
    RETURN_IF_ERROR(exchange_.Await(submitted_step_[b], b));
    submitted_step_[b] = -1;
  }
  timer_->Enter(outer);
  return absl::OkStatus();
}

absl::Status TrainerImpl::SubmitComplete(ElementRange layer) {
  if (layer.size() == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckGradient(layer));
  const StepPart part = worker_.sync == Sync::kLocal ? StepPart::kOptimizer : StepPart::kExposedExchange;
  const StepPart outer = timer_->Enter(part);
  for (; next_bucket_ < buckets_.bucket_count() && buckets_.bucket(next_bucket_).begin >= layer.begin; ++next_bucket_) {
    const ElementRange range = buckets_.bucket(next_bucket_);
    submitted_step_[next_bucket_] = step_;
    exchange_.Submit(step_, next_bucket_, gradients().subspan(range.begin, range.size()));
  }
  timer_->Enter(outer);
  return absl::OkStatus();
}

absl::Status TrainerImpl::CheckGradient(ElementRange range) {
  const std::optional<int64_t> bad = FindNonFinite(gradients().subspan(range.begin, range.size()));
  if (!bad.has_value()) return absl::OkStatus();
  const int64_t element = range.begin + *bad;
  return absl::InternalError(
      absl::StrCat("rank ", worker_.rank, ", step ", step_, ": the gradient of tensor ",
                   std::string(layout().TensorAt(element)), " is ", gradients()[element],
                   ": the step is refused; lower --learning_rate or look at the data, and continue "
                   "from the last checkpoint with --resume"));
}

absl::Status TrainerImpl::AverageBuffers() {
  // Every rank has normalised its own samples. The running statistics are linear in the batches', so their mean over
  // ranks is what one worker would have kept that saw the mean of the ranks' moments.
  if (worker_.world_size == 1) return absl::OkStatus();
  for (const NetworkBuffer& buffer : network_.buffers()) {
    std::vector<double> values(buffer.values.begin(), buffer.values.end());
    RETURN_IF_ERROR(exchange_.Sum(values));
    for (size_t i = 0; i < values.size(); ++i) buffer.values[i] = static_cast<float>(values[i] / worker_.world_size);
  }
  return absl::OkStatus();
}

// This rank's part of the test set: loss sum, correct, count.
absl::Status TrainerImpl::Evaluate(std::span<double, 3> sums) {
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
    ASSIGN_OR_RETURN(const Batch* batch, batches->Next());
    const NetworkInput input = InputOf(*batch);
    if (input.batch == 0) continue;
    RETURN_IF_ERROR(network_.Evaluate(input, parameters()));
    const LossResult loss = network_.Result();
    sums[0] += loss.loss_sum;
    sums[1] += static_cast<double>(loss.correct);
    sums[2] += static_cast<double>(input.batch);
  }
  return absl::OkStatus();
}

absl::Status TrainerImpl::FinishEpoch() {
  const double seconds = absl::ToDoubleSeconds(absl::Now() - epoch_begin_);
  RETURN_IF_ERROR(AverageBuffers());
  std::array<double, 4> sums = {epoch_loss_sum_, 0, 0, 0};  // training loss, test loss, correct, tested
  RETURN_IF_ERROR(Evaluate(std::span(sums).subspan<1, 3>()));
  RETURN_IF_ERROR(exchange_.Sum(sums));
  CHECK_EQ(static_cast<int64_t>(sums[3]), data_.test.count);
  const EpochSummary summary{.epoch = epoch(),
                             .train_loss = sums[0] / static_cast<double>(epoch_samples_),
                             .test_loss = sums[1] / sums[3],
                             .test_accuracy = sums[2] / sums[3],
                             .seconds = seconds,
                             .samples_per_second = static_cast<double>(epoch_samples_) / seconds};
  result_.epochs.push_back(summary);
  progress_->EpochDone(summary);
  const bool last = step_ == end_step_;
  const bool whole_epoch = step_ % steps_per_epoch_ == 0;
  if (last || (whole_epoch && (epoch() + 1) % worker_.checkpoint_every_epochs == 0))
    RETURN_IF_ERROR(checkpointer_->Save(step_, parameters(), &exchange_));
  epoch_loss_sum_ = 0;
  epoch_samples_ = 0;
  epoch_begin_ = absl::Now();
  return absl::OkStatus();
}

absl::Status TrainerImpl::CheckRanksAgree() {
  result_.parameter_sha256 = Sha256Hex(std::as_bytes(parameters()));
  result_.steps_per_epoch = steps_per_epoch_;
  result_.bucket_bytes = buckets_.bucket(buckets_.bucket_count() - 1).size() * static_cast<int64_t>(sizeof(float));
  if (worker_.world_size == 1) return absl::OkStatus();
  // Twelve hexadecimal digits are exact in a double, and so is their sum over ranks.
  const auto mine = static_cast<double>(std::stoull(result_.parameter_sha256.substr(0, 12), nullptr, 16));
  std::array<double, 1> sum = {mine};
  RETURN_IF_ERROR(exchange_.Sum(sum));
  if (sum[0] != mine * worker_.world_size) {
    return absl::InternalError(absl::StrCat("rank ", worker_.rank, " ends with parameters ", result_.parameter_sha256,
                                            ", and another rank with others: this is a defect of the exchange"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Options& options) {
  auto trainer = std::make_unique<TrainerImpl>(options);
  RETURN_IF_ERROR(trainer->Prepare());
  return trainer;
}

}  // namespace starring
