// Steps whose exchange is in the order of the stream, on an emulated GPU, and when steps wait on the host.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/job/bucket_map.h"
#include "common/job/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/counters.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "worker/data/dataset.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/exchange/stream_exchange.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"
#include "worker/step/cuda_training_step.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLayers[] =
    "layer { name: \"fc1\" dense { units: 8 relu: true } }\n"
    "layer { name: \"fc2\" dense { units: 10 } }\n";
constexpr int64_t kGlobalBatch = 4, kSamples = 14;  // batches of 4, 4, 4 and 2
constexpr int64_t kSteps = 8;

enum class Waits { kGpu, kHost };

// Updates nothing, and notes for which rounds it was to wait, or what the GPU did before the host waits.
class NotingExchange final : public GradientExchange, public StreamExchange {
 public:
  NotingExchange(CudaDevice* device, Waits waits) : device_(*device), waits_(waits) {}

  absl::Status Start(const JobSpec&, std::span<float> parameters) override {
    const auto bytes = static_cast<int64_t>(parameters.size_bytes());
    ASSIGN_OR_RETURN(parameters_, device_.Allocate(bytes));
    ASSIGN_OR_RETURN(gradients_, device_.Allocate(bytes));
    device_.CopyToDevice(parameters.data(), parameters_->data(), bytes);
    memory_.place = ExchangeMemory::Place::kDevice;
    memory_.parameters = {parameters_->floats(), parameters.size()};
    memory_.gradients.assign(1, {gradients_->floats(), parameters.size()});
    return device_.Synchronize();
  }
  const ExchangeMemory& memory() const override { return memory_; }
  void Submit(const Submission&) override {
    ASSERT_EQ(waits_, Waits::kHost);
    EXPECT_GT(cuda_emulation::TakeCounts().kernels, 0);
  }
  absl::Status Await(int64_t, int) override {
    kernels_before_awaits.push_back(cuda_emulation::TakeCounts().kernels);
    return waits_ == Waits::kHost ? absl::OkStatus() : absl::InternalError("no bucket was submitted");
  }
  absl::Status Sum(SumPurpose, std::span<double>) override { return absl::OkStatus(); }
  absl::Status GatherOptimizerState(std::span<const std::span<float>>) override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  absl::Status Finish() override { return absl::OkStatus(); }
  ExchangeCounters counters() const override { return {}; }
  StreamExchange* streams() override { return waits_ == Waits::kGpu ? this : nullptr; }

  CudaOptimizerScalars ScalarsOf(int64_t) const override { return {}; }
  absl::Status EnqueueBucket(CudaStream*, int slot, int, const CudaStepValues*) override {
    return slot == refused_slot ? absl::InternalError("refused") : absl::OkStatus();
  }
  absl::Status EnqueueEnd(CudaStream*, int) override { return absl::OkStatus(); }
  absl::Status AwaitRound(int64_t round, CudaEvent* done) override {
    awaited.push_back(round);
    return done->Wait();
  }
  std::optional<NonFinite> FindNonFinite(int64_t round) const override {
    if (round != spoilt_round) return std::nullopt;
    return NonFinite{.rank = 1, .element = 0};
  }

  int64_t spoilt_round = -1;
  int refused_slot = -1;
  std::vector<int64_t> awaited;
  std::vector<int64_t> kernels_before_awaits;  // since the last Submit or Await

 private:
  CudaDevice& device_;
  const Waits waits_;
  std::unique_ptr<DeviceBuffer> parameters_, gradients_;
  ExchangeMemory memory_;
};

class CudaStreamStepTest : public testing::Test {
 protected:
  explicit CudaStreamStepTest(Waits waits = Waits::kGpu, CudaGraphs graphs = CudaGraphs::kCaptured) {
    cuda_emulation::Gpu().late = true;
    DatasetOptions options{.name = "synthetic", .synthetic_train_count = kSamples};
    options.synthetic_test_count = 1;
    options.synthetic_height = options.synthetic_width = 4;
    options.synthetic_channels = 1;
    data_ = LoadDataset(options).value();
    device_ = CreateCudaDevice({}).value();
    network_ = Network::Create(LayerFile::Parse(kLayers, "test.textproto").value(),
                               {.height = 4,
                                .width = 4,
                                .channels = 1,
                                .outputs = 10,
                                .batch_max = kGlobalBatch,
                                .evaluation_batch_max = 1},
                               device_.get())
                   .value();
    const Layout& layout = network_->layout();
    buckets_ = BucketMap::Create({.element_count = layout.element_count(), .bucket_bytes = 1, .world_size = 1}).value();
    exchange_ = std::make_unique<NotingExchange>(device_.get(), waits);
    step_ = CreateCudaTrainingStep(
                {.network = network_.get(), .exchange = exchange_.get(), .buckets = &buckets_, .world_size = 2},
                {.device = device_.get(),
                 .graphs = graphs,
                 .data = &data_,
                 .batch_max = kGlobalBatch,
                 .evaluation_batch_max = 1})
                .value();
    network_->InitializeParameters(1, step_->initial_parameters());
    CHECK(exchange_->Start({.world_size = 1, .layout = layout, .buckets = buckets_}, step_->initial_parameters()).ok());
    const Normalization normalization{.mean = {0.5f}, .deviation = {0.25f}};
    loader_ = Loader::Create({.dataset = &data_.train,
                              .sampler = {.sample_count = kSamples, .global_batch = kGlobalBatch, .seed = 3},
                              .normalization = normalization,
                              .format = step_->batch_format(),
                              .end_step = kSteps,
                              .memory = step_->batch_memory()})
                  .value();
    CHECK(step_->Begin({.normalization = normalization, .timer = &timer_, .end_step = kSteps}).ok());
  }
  ~CudaStreamStepTest() override {
    loader_.reset();
    step_.reset();
    exchange_.reset();
    network_.reset();
    device_.reset();
    cuda_emulation::Gpu() = {};
  }

  absl::Status Run(int64_t steps) {
    for (const int64_t end = next_ + steps; next_ < end; ++next_) {
      RETURN_IF_ERROR(step_->Run(next_, loader_.get(), &finished_));
    }
    return absl::OkStatus();
  }

  TrainAndTest data_;
  StepTimer timer_{0};
  BucketMap buckets_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<NotingExchange> exchange_;
  std::unique_ptr<TrainingStep> step_;
  std::unique_ptr<Loader> loader_;
  int64_t next_ = 0;
  std::vector<FinishedStep> finished_;
};

TEST_F(CudaStreamStepTest, RoundsAreAwaitedInTheirOrderAlsoBeforeAStepThatRunsCallByCall) {
  ASSERT_TRUE(Run(3).ok());
  EXPECT_THAT(exchange_->awaited, ElementsAre(0));  // the first step of the batch size
  // Step 3 is the first of its size, while step 0 has not been finished, and steps 1 and 2 run.
  ASSERT_TRUE(Run(1).ok());
  EXPECT_THAT(exchange_->awaited, ElementsAre(0, 0, 1, 2, 3, 0));
  ASSERT_EQ(finished_.size(), 1u);  // the results of the others are still to come
  EXPECT_EQ(finished_[0].step, 0);
  ASSERT_TRUE(step_->Settle(&finished_).ok());
  ASSERT_EQ(finished_.size(), 4u);
  EXPECT_EQ(finished_[3].step, 3);
}

TEST_F(CudaStreamStepTest, ANanOfAnotherRankIsNamedOnceAnEarlierStepIsFinished) {
  exchange_->spoilt_round = 1;
  ASSERT_TRUE(Run(4).ok());  // step 3 awaits round 1, and leaves its finding
  EXPECT_THAT(std::string(Run(1).message()), HasSubstr("rank 1, step 1: the gradient of tensor fc1."));
  EXPECT_EQ(finished_.size(), 1u);
}

TEST_F(CudaStreamStepTest, AnErrorInACaptureEndsTheCapture) {
  ASSERT_TRUE(Run(1).ok());
  exchange_->refused_slot = 1;
  EXPECT_THAT(std::string(Run(1).message()), HasSubstr("refused"));
  const std::unique_ptr<CudaEvent> done = device_->CreateEvent().value();
  ASSERT_TRUE(device_->stream()->Record(done.get()).ok());
  EXPECT_TRUE(done->Wait().ok());
  EXPECT_TRUE(device_->BeginCapture().ok());
  EXPECT_TRUE(device_->EndCapture().ok());
}

class CudaHostStepTest : public CudaStreamStepTest {
 protected:
  CudaHostStepTest() : CudaStreamStepTest(Waits::kHost, CudaGraphs::kNone) {}
};

// Else the batch's kernels would be in the gap that the GPU's clock measures, and in a graph's compute.
TEST_F(CudaHostStepTest, WithoutAGraphTheBatchIsTakenWhenParametersHaveCome) {
  ASSERT_TRUE(Run(4).ok());
  EXPECT_THAT(exchange_->kernels_before_awaits, ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace starring
