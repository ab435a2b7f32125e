// One worker's steps, on an emulated GPU whose streams run as late as they may. The number of batch slots must not
// change any result.
#include "worker/step/cuda_training_step.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/bucket_map.h"
#include "common/job/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "worker/data/dataset.h"
#include "worker/exchange/local/local_exchange.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A network whose operations have memory of their own: batch norm's statistics, the pool's winners, the loss's sums.
constexpr char kLayers[] =
    "layer { name: \"conv\" conv2d { out_channels: 4 kernel: 3 padding: 1 no_bias: true } }\n"
    "layer { name: \"bn\" batch_norm { relu: true } }\n"
    "layer { name: \"pool\" max_pool { kernel: 2 } }\n"
    "layer { name: \"fc\" dense { units: 10 } }\n";
constexpr int64_t kGlobalBatch = 4, kSamples = 10;  // the last batch of an epoch has 2
constexpr int64_t kEvaluationBatchMax = 16, kSteps = 40;

class CudaTrainingStepTest : public testing::Test {
 protected:
  CudaTrainingStepTest() {
    cuda_emulation::Gpu().late = true;
    DatasetOptions options{.name = "synthetic", .synthetic_train_count = kSamples};
    options.synthetic_test_count = kEvaluationBatchMax;
    options.synthetic_height = options.synthetic_width = 4;
    options.synthetic_channels = 1;
    data_ = LoadDataset(options).value();
    device_ = CreateCudaDevice({}).value();
  }
  ~CudaTrainingStepTest() override {
    End();
    device_.reset();
    cuda_emulation::Gpu() = {};
  }

  void End() {
    loader_.reset();
    step_.reset();
    exchange_.reset();
    network_.reset();
  }

  // Begins a new training.
  void Start(int batch_slots, double learning_rate = 0.05) {
    End();
    next_ = 0;
    finished_.clear();
    network_ = Network::Create(LayerFile::Parse(kLayers, "test.textproto").value(),
                               {.height = 4,
                                .width = 4,
                                .channels = 1,
                                .outputs = 10,
                                .batch_max = kGlobalBatch,
                                .evaluation_batch_max = kEvaluationBatchMax},
                               device_.get())
                   .value();
    const Layout& layout = network_->layout();
    buckets_ = BucketMap::Create({.element_count = layout.element_count(), .bucket_bytes = 1, .world_size = 1}).value();
    JobSpec job{.world_size = 1, .optimizer = {.momentum = 0.9}, .layout = layout, .buckets = buckets_};
    job.schedule.base = learning_rate;
    exchange_ = CreateLocalExchange(nullptr, LocalUpdates::kTrainingStep);
    step_ = CreateCudaTrainingStep({.network = network_.get(),
                                    .exchange = exchange_.get(),
                                    .buckets = &buckets_,
                                    .exchange_part = StepPart::kOptimizer},
                                   {.device = device_.get(),
                                    .optimizer = job.optimizer,
                                    .data = &data_,
                                    .batch_max = kGlobalBatch,
                                    .evaluation_batch_max = kEvaluationBatchMax,
                                    .batch_slots = batch_slots})
                .value();
    network_->InitializeParameters(1, step_->initial_parameters());
    ASSERT_TRUE(exchange_->Start(job, step_->initial_parameters()).ok());
    ASSERT_TRUE(step_->StartOptimizer(job).ok());
    loader_ = Loader::Create({.dataset = &data_.train,
                              .sampler = {.sample_count = kSamples, .global_batch = kGlobalBatch, .seed = 3},
                              .normalization = kNormalization,
                              .format = step_->batch_format(),
                              .end_step = kSteps,
                              .memory = step_->batch_memory()})
                  .value();
    ASSERT_TRUE(step_->Begin({.normalization = kNormalization, .timer = &timer_, .end_step = kSteps}).ok());
  }

  absl::Status Run(int64_t steps) {
    for (const int64_t end = next_ + steps; next_ < end; ++next_) {
      RETURN_IF_ERROR(step_->Run(next_, loader_.get(), &finished_));
    }
    return absl::OkStatus();
  }
  absl::Status RunAndSettle(int64_t steps) {
    RETURN_IF_ERROR(Run(steps));
    return step_->Settle(&finished_);
  }

  double TestLoss(int64_t count) {
    const auto values = static_cast<size_t>(count);
    const std::span<const uint8_t> pixels(data_.test.images.data(), 16 * values);
    const std::vector<int32_t> labels(data_.test.labels.begin(), data_.test.labels.begin() + count);
    return step_->Evaluate({.stored = pixels, .labels = labels}).value().loss_sum;
  }

  // The results of a training that was settled in the middle.
  struct Outcome {
    std::vector<float> parameters_in_the_middle, parameters;
    double test_loss_in_the_middle = 0, test_loss = 0;
    std::vector<std::pair<int64_t, double>> losses;
    bool operator==(const Outcome&) const = default;
  };
  Outcome Train(int batch_slots) {
    Outcome outcome;
    Start(batch_slots);
    EXPECT_TRUE(RunAndSettle(7).ok());
    EXPECT_EQ(finished_.size(), 7u);
    outcome.parameters_in_the_middle.assign(step_->parameters().begin(), step_->parameters().end());
    outcome.test_loss_in_the_middle = TestLoss(16);
    EXPECT_TRUE(RunAndSettle(9).ok());
    outcome.parameters.assign(step_->parameters().begin(), step_->parameters().end());
    outcome.test_loss = TestLoss(16);
    for (const FinishedStep& step : finished_) outcome.losses.emplace_back(step.step, step.loss.loss_sum);
    return outcome;
  }

  inline static const Normalization kNormalization{.mean = {0.5f}, .deviation = {0.25f}};

  TrainAndTest data_;
  StepTimer timer_{0};
  BucketMap buckets_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<GradientExchange> exchange_;
  std::unique_ptr<TrainingStep> step_;
  std::unique_ptr<Loader> loader_;
  int64_t next_ = 0;
  std::vector<FinishedStep> finished_;
};

TEST_F(CudaTrainingStepTest, AnyNumberOfBatchSlotsGivesTheSameSteps) {
  const Outcome two = Train(2);
  ASSERT_EQ(two.losses.size(), 16u);
  for (int64_t step = 0; step < 16; ++step) EXPECT_EQ(two.losses[static_cast<size_t>(step)].first, step);
  EXPECT_NE(two.parameters, two.parameters_in_the_middle);
  EXPECT_NE(two.test_loss, two.test_loss_in_the_middle);
  for (const int batch_slots : {3, 4}) EXPECT_EQ(Train(batch_slots), two) << batch_slots << " slots";
}

TEST_F(CudaTrainingStepTest, AStepIsFinishedWhenItsSlotIsNeeded) {
  Start(4);
  ASSERT_TRUE(Run(3).ok());
  EXPECT_THAT(finished_, IsEmpty());
  ASSERT_TRUE(Run(1).ok());
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].step, 0);
}

TEST_F(CudaTrainingStepTest, TheFirstStepWithANanIsNamedHoweverManyFollow) {
  // With this learning rate the parameters after step 0 are so large that the gradient of step 1 is not finite.
  for (const int batch_slots : {2, 4}) {
    for (const int64_t settle_after : {2, 3, 4}) {
      Start(batch_slots, 1e25);
      const absl::Status status = RunAndSettle(settle_after);
      EXPECT_THAT(std::string(status.message()), HasSubstr("step 1: the gradient of tensor"))
          << batch_slots << " slots, settled after " << settle_after << " steps";
    }
    Start(batch_slots, 1e25);
    ASSERT_TRUE(Run(batch_slots).ok());
    EXPECT_THAT(std::string(Run(1).message()), HasSubstr("step 1: the gradient of tensor"));
  }
}

// Between two launches of a graph, and between a batch size's first step and its captures, the network runs as many
// other batch sizes as it keeps. The graphs must keep their operations alive. AddressSanitizer would find a write to
// freed memory; this test finds a wrong result.
TEST_F(CudaTrainingStepTest, GraphsKeepTheOperationsThatTheyWereCapturedFrom) {
  const auto forget = [this] {
    static_assert(kEvaluationBatchMax >= kNetworkPlansMax);
    for (size_t batch = 1; batch <= kNetworkPlansMax; ++batch) TestLoss(static_cast<int64_t>(batch));
  };
  std::vector<float> undisturbed;
  for (const bool disturbed : {false, true}) {
    Start(4);
    std::vector<std::weak_ptr<const void>> captured;
    // Two of every three steps have the larger batch size. Step 0 runs without a graph; steps 1, 3, 4 and 6 are
    // captured, each on its slot; steps 7 and 9 are only launched.
    for (int step = 0; step < 10; ++step) {
      ASSERT_TRUE(RunAndSettle(1).ok());
      if (step == 1 || step == 3 || step == 4 || step == 6) captured.push_back(network_->operations());
      if (disturbed && (step == 0 || step == 3 || step == 6 || step == 8)) forget();
    }
    if (!disturbed) undisturbed.assign(step_->parameters().begin(), step_->parameters().end());
    EXPECT_TRUE(std::ranges::equal(step_->parameters(), undisturbed));
    for (const auto& operations : captured) EXPECT_FALSE(operations.expired());
    step_.reset();
    if (!disturbed) continue;
    for (const auto& operations : captured) EXPECT_TRUE(operations.expired());
  }
}

}  // namespace
}  // namespace starring
