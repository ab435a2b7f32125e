#include "worker/model/network.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/allocation_count.h"
#include "tests/worker/model/idle_device.h"
#include "tests/worker/model/reference_device.h"
#include "worker/model/layer_file.h"
#include "worker/model/network_graph.h"
#include "worker/model/network_program.h"

namespace starring {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kSmall[] =
    "layer { name: \"conv\" conv2d { out_channels: 2 kernel: 3 padding: 1 no_bias: true } }\n"
    "layer { name: \"bn\" batch_norm { relu: true } }\n"
    "layer { name: \"pool\" max_pool { kernel: 2 } }\n"
    "layer { name: \"drop\" dropout { rate: 0.5 } }\n"
    "layer { name: \"fc\" dense { units: 3 } }\n";
constexpr int64_t kBatchMax = 6;
constexpr NetworkOptions kSmallOptions{
    .height = 4, .width = 6, .channels = 2, .outputs = 3, .batch_max = kBatchMax, .seed = 9};

absl::Status Nothing(int) { return absl::OkStatus(); }

std::unique_ptr<Network> MakeNetwork(Device* device, const std::string& text = kSmall,
                                     const NetworkOptions& options = kSmallOptions) {
  absl::StatusOr<LayerFile> file = LayerFile::Parse(text, "test.textproto");
  EXPECT_TRUE(file.ok()) << file.status();
  absl::StatusOr<std::unique_ptr<Network>> network = Network::Create(*file, options, device);
  EXPECT_TRUE(network.ok()) << network.status();
  return *std::move(network);
}

std::unique_ptr<Network> LoadNetwork(Device* device, const std::string& name, const NetworkOptions& options) {
  absl::StatusOr<std::unique_ptr<Network>> network = Network::Create(*LayerFile::Load(name), options, device);
  EXPECT_TRUE(network.ok()) << network.status();
  return *std::move(network);
}

class NetworkTest : public testing::Test {
 protected:
  NetworkTest() : network_(MakeNetwork(&device_)), parameters_(network_->layout().element_count()) {
    network_->InitializeParameters(1, parameters_);
    gradients_.assign(parameters_.size(), std::numeric_limits<float>::quiet_NaN());
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    images_.resize(16 * 4 * 6 * 2);
    for (float& value : images_) value = normal(random);
    labels_.resize(16);
    for (int32_t& label : labels_) label = static_cast<int32_t>(random() % 3);
  }

  NetworkInput Input(int64_t batch, int64_t first = 0) {
    return {.images = images_.data() + first * 4 * 6 * 2, .targets = labels_.data() + first, .batch = batch};
  }
  Network::TrainStep Step(int64_t batch, int64_t first_sample = 0) {
    return {.input = Input(batch, first_sample),
            .step = 4,
            .first_sample = first_sample,
            .loss_scale = 0.25f,
            .parameters = parameters_,
            .gradients = gradients_};
  }
  // The loss and gradients of a step on `network`.
  std::pair<double, std::vector<float>> Train(Network* network, const Network::TrainStep& step) {
    EXPECT_TRUE(network->Forward(step, Nothing).ok());
    EXPECT_TRUE(network->Backward(step, Nothing).ok());
    std::vector<float> gradients = gradients_;
    for (float& gradient : gradients) gradient = std::isnan(gradient) ? -99 : gradient;  // gaps
    return {network->Result().loss_sum, gradients};
  }

  ReferenceDevice device_;
  std::unique_ptr<Network> network_;
  std::vector<float> parameters_, gradients_;
  std::vector<float> images_;
  std::vector<int32_t> labels_;
};

TEST_F(NetworkTest, HooksRunInOrderAroundEveryLayer) {
  std::vector<int> before, after;
  ASSERT_TRUE(network_->Forward(Step(2), [&](int l) { return before.push_back(l), absl::OkStatus(); }).ok());
  ASSERT_TRUE(network_->Backward(Step(2), [&](int l) { return after.push_back(l), absl::OkStatus(); }).ok());
  EXPECT_THAT(before, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(after, ElementsAre(4, 3, 2, 1, 0));
}

// The exchange writes new parameters of layer l until before_layer(l) returns.
TEST_F(NetworkTest, ParametersAreReadOnlyAfterTheirHook) {
  const auto [loss, gradients] = Train(network_.get(), Step(3));
  const std::vector<float> whole = parameters_;
  std::fill(parameters_.begin(), parameters_.end(), std::numeric_limits<float>::quiet_NaN());
  const auto arrive = [&](int l) {
    const ElementRange range = network_->LayerRange(l);
    std::copy(whole.begin() + range.begin, whole.begin() + range.end, parameters_.begin() + range.begin);
    return absl::OkStatus();
  };
  ASSERT_TRUE(network_->Forward(Step(3), arrive).ok());
  EXPECT_EQ(network_->Result().loss_sum, loss);
}

// The exchange takes gradients and overwrites parameters of layer l as soon as after_layer(l) is called.
TEST_F(NetworkTest, GradientsAreFinalAtTheirHook) {
  const auto [loss, gradients] = Train(network_.get(), Step(3));
  ASSERT_TRUE(network_->Forward(Step(3), Nothing).ok());
  std::vector<float> seen(gradients.size(), -99);
  const auto leave = [&](int l) {
    const ElementRange range = network_->LayerRange(l);
    for (int64_t e = range.begin; e < range.end; ++e) {
      if (!std::isnan(gradients_[e])) seen[e] = gradients_[e];
      gradients_[e] = parameters_[e] = std::numeric_limits<float>::quiet_NaN();
    }
    return absl::OkStatus();
  };
  ASSERT_TRUE(network_->Backward(Step(3), leave).ok());
  EXPECT_EQ(seen, gradients);
  EXPECT_THAT(gradients_, Each(testing::IsNan())) << "written after the hook";
}

TEST_F(NetworkTest, AnErrorOfAHookStops) {
  int calls = 0;
  const auto fail = [&](int l) { return ++calls, l == 2 ? absl::UnavailableError("gone") : absl::OkStatus(); };
  EXPECT_EQ(network_->Forward(Step(2), fail).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls, 3);
  ASSERT_TRUE(network_->Forward(Step(2), Nothing).ok());
  calls = 0;
  EXPECT_EQ(network_->Backward(Step(2), fail).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls, 3);
}

TEST_F(NetworkTest, AnEmptyBatchHasZeroGradientsAndAllHooks) {
  Train(network_.get(), Step(2));
  std::vector<int> hooks;
  const auto note = [&](int l) { return hooks.push_back(l), absl::OkStatus(); };
  std::fill(gradients_.begin(), gradients_.end(), 5.0f);
  ASSERT_TRUE(network_->Forward(Step(0), note).ok());
  ASSERT_TRUE(network_->Backward(Step(0), note).ok());
  EXPECT_THAT(hooks, ElementsAre(0, 1, 2, 3, 4, 4, 3, 2, 1, 0));
  for (int64_t e = 0; e < network_->layout().element_count(); ++e) {
    EXPECT_EQ(gradients_[e], network_->layout().TensorAt(e).empty() ? 5 : 0) << e;
  }
  EXPECT_EQ(network_->Result().loss_sum, 0);
  EXPECT_EQ(network_->Result().correct, 0);
  ASSERT_TRUE(network_->Evaluate(Input(0), parameters_).ok());
  EXPECT_EQ(network_->Result().loss_sum, 0);
}

TEST_F(NetworkTest, BackwardNeedsForwardOfTheSameBatch) {
  EXPECT_DEATH((void)network_->Backward(Step(2), Nothing), "without Forward");
  ASSERT_TRUE(network_->Forward(Step(2), Nothing).ok());
  EXPECT_DEATH((void)network_->Backward(Step(3), Nothing), "without Forward");
  ASSERT_TRUE(network_->Evaluate(Input(2), parameters_).ok());
  EXPECT_DEATH((void)network_->Backward(Step(2), Nothing), "without Forward");
  EXPECT_DEATH((void)network_->Forward(Step(kBatchMax + 1), Nothing), "batch_max");
}

// Plans share the arena: what one plan leaves there must not affect another.
TEST_F(NetworkTest, BatchSizesDoNotDisturbEachOther) {
  for (const int64_t batch : {6, 1, 4, 6, 3, 1, 6}) {
    SCOPED_TRACE(batch);
    std::unique_ptr<Network> alone = MakeNetwork(&device_);
    EXPECT_EQ(Train(network_.get(), Step(batch)), Train(alone.get(), Step(batch)));
    ASSERT_TRUE(network_->Evaluate(Input(batch), parameters_).ok());
  }
}

TEST_F(NetworkTest, PlansAreKeptAndBounded) {
  Train(network_.get(), Step(6));
  Train(network_.get(), Step(5));
  const int created = device_.operations_created();
  for (int i = 0; i < 3; ++i) {
    Train(network_.get(), Step(6));
    Train(network_.get(), Step(5));
  }
  EXPECT_EQ(device_.operations_created(), created);

  NetworkOptions options = kSmallOptions;
  options.batch_max = 16;
  std::unique_ptr<Network> network = MakeNetwork(&device_, kSmall, options);
  const int64_t plans_max = kNetworkPlansMax;
  for (int64_t batch = 1; batch <= plans_max; ++batch) Train(network.get(), Step(batch));
  Train(network.get(), Step(1));              // the oldest plan becomes the newest
  Train(network.get(), Step(plans_max + 1));  // replaces the plan for 2 samples
  const int before = device_.operations_created();
  Train(network.get(), Step(1));
  EXPECT_EQ(device_.operations_created(), before);
  Train(network.get(), Step(2));
  EXPECT_GT(device_.operations_created(), before);
}

// A captured graph writes to the memory of the operations that it was captured from.
TEST_F(NetworkTest, OperationsThatAreStillUsedOutliveTheirPlan) {
  NetworkOptions options = kSmallOptions;
  options.batch_max = 16;
  std::unique_ptr<Network> network = MakeNetwork(&device_, kSmall, options);
  Train(network.get(), Step(16));
  std::shared_ptr<const void> held = network->operations();
  const std::weak_ptr<const void> seen = held;
  Train(network.get(), Step(15));
  const std::weak_ptr<const void> not_held = network->operations();
  for (int64_t batch = 1; batch <= static_cast<int64_t>(kNetworkPlansMax); ++batch) {
    ASSERT_TRUE(network->Evaluate(Input(batch), parameters_).ok());
  }
  EXPECT_TRUE(not_held.expired());
  EXPECT_FALSE(seen.expired());
  held.reset();
  EXPECT_TRUE(seen.expired());

  ASSERT_TRUE(network->PlanTraining(16).ok());
  const int created = device_.operations_created();
  Train(network.get(), Step(16));
  EXPECT_EQ(device_.operations_created(), created);
  Train(network.get(), Step(0));
  EXPECT_EQ(network->operations(), nullptr);
}

// A rank that computes the second half of a batch drops the elements that a single worker would drop there. The network
// has no batch norm, whose statistics are each rank's own.
TEST_F(NetworkTest, HalfBatchesAddUpToTheWhole) {
  const std::string text =
      "layer { name: \"a\" dense { units: 8 relu: true } } layer { name: \"d\" dropout { rate: 0.5 } }"
      "layer { name: \"fc\" dense { units: 3 } }";
  network_ = MakeNetwork(&device_, text);
  parameters_.resize(network_->layout().element_count());
  gradients_.assign(parameters_.size(), std::numeric_limits<float>::quiet_NaN());
  network_->InitializeParameters(1, parameters_);
  const auto [loss, whole] = Train(network_.get(), Step(6));
  const auto [loss_low, low] = Train(network_.get(), Step(2));
  const auto [loss_high, high] = Train(network_.get(), Step(4, 2));
  EXPECT_NEAR(loss_low + loss_high, loss, 1e-6);
  for (size_t e = 0; e < whole.size(); ++e) {
    if (whole[e] == -99) continue;
    EXPECT_NEAR(low[e] + high[e], whole[e], 1e-6) << e;
  }
}

TEST_F(NetworkTest, EvaluationHasNoDropoutAndUsesRunningStatistics) {
  std::vector<NetworkBuffer> buffers = network_->buffers();
  ASSERT_EQ(buffers.size(), 2);
  EXPECT_EQ(buffers[0].name, "bn.running_mean");
  EXPECT_EQ(buffers[1].name, "bn.running_var");
  EXPECT_THAT(buffers[0].values, ElementsAre(0, 0));
  EXPECT_THAT(buffers[1].values, ElementsAre(1, 1));
  for (int i = 0; i < 3; ++i) Train(network_.get(), Step(6));
  EXPECT_NE(buffers[0].values[0], 0) << "training moves the running mean";
  const std::vector<float> statistics(buffers[0].values.begin(), buffers[0].values.end());

  // A sample's result does not depend on the other samples, and a second evaluation changes nothing.
  double sum = 0;
  int64_t correct = 0;
  for (int64_t n = 0; n < 6; ++n) {
    ASSERT_TRUE(network_->Evaluate(Input(1, n), parameters_).ok());
    sum += network_->Result().loss_sum;
    correct += network_->Result().correct;
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(network_->Evaluate(Input(6), parameters_).ok());
    EXPECT_NEAR(network_->Result().loss_sum, sum, 1e-6);
    EXPECT_EQ(network_->Result().correct, correct);
  }
  EXPECT_THAT(buffers[0].values, testing::ElementsAreArray(statistics)) << "evaluation must not move it";

  // The same network without the dropout layer.
  std::string text = kSmall;
  text.erase(text.find("layer { name: \"drop\""),
             text.find("layer { name: \"fc\"") - text.find("layer { name: \"drop\""));
  std::unique_ptr<Network> without = MakeNetwork(&device_, text);
  for (size_t b = 0; b < buffers.size(); ++b) {
    std::copy(buffers[b].values.begin(), buffers[b].values.end(), without->buffers()[b].values.begin());
  }
  ASSERT_TRUE(without->Evaluate(Input(6), parameters_).ok());
  EXPECT_NEAR(without->Result().loss_sum, sum, 1e-6);
}

TEST_F(NetworkTest, EvaluationMayHaveLargerBatches) {
  NetworkOptions options = kSmallOptions;
  options.batch_max = 2;
  options.evaluation_batch_max = 16;
  std::unique_ptr<Network> network = MakeNetwork(&device_, kSmall, options);
  ASSERT_TRUE(network->Evaluate(Input(16), parameters_).ok());
  EXPECT_DEATH((void)network->Forward(Step(3), Nothing), "batch_max");
}

// A residual join masks its gradient while it adds the two parts: one pass over memory, not two.
TEST(NetworkProgramTest, ResidualGradientsAreMaskedWhereTheyAreAdded) {
  const absl::StatusOr<LayerFile> file = LayerFile::Load("resnet20");
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<NetworkGraph> graph =
      NetworkGraph::Create(*file, {.height = 32, .width = 32, .channels = 3, .outputs = 10});
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::map<Instruction::Operation, int> counts;
  for (const std::vector<Instruction>& layer : BuildTrainingProgram(*graph).backward) {
    for (const Instruction& instruction : layer) ++counts[instruction.operation];
  }
  using Operation = Instruction::Operation;
  EXPECT_EQ(counts[Operation::kSumMask], 8) << "the joins but for the last, which has one reader";
  EXPECT_EQ(counts[Operation::kMask], 1) << "the last join";
  EXPECT_EQ(counts[Operation::kSum], 1) << "the first block reads a batch norm, which masks by itself";
}

TEST(NetworkMemoryTest, AChainReusesWhatIsDead) {
  ReferenceDevice device;
  std::string text;
  for (int l = 0; l < 30; ++l) {
    absl::StrAppend(&text, "layer { name: \"c", l, "\" conv2d { out_channels: 4 kernel: 3 padding: 1 relu: true } }\n");
  }
  text += "layer { name: \"g\" global_average_pool {} } layer { name: \"fc\" dense { units: 3 } }";
  NetworkOptions options = {.height = 8, .width = 8, .channels = 4, .outputs = 3, .batch_max = 2};
  const int64_t activation_bytes = options.batch_max * 8 * 8 * 4 * 4;
  const int64_t training_bytes = MakeNetwork(&device, text, options)->arena_bytes();
  // 30 activations are kept, and at most two gradients are alive at a time.
  EXPECT_GE(training_bytes, 30 * activation_bytes);
  EXPECT_LE(training_bytes, 33 * activation_bytes);
  // Evaluation keeps one input and one output.
  options.evaluation_batch_max = 100 * options.batch_max;
  EXPECT_LE(MakeNetwork(&device, text, options)->arena_bytes(), 100 * 3 * activation_bytes);
}

TEST(NetworkMemoryTest, AllocatesNothingOnceABatchSizeIsKnown) {
  IdleDevice device;
  const NetworkOptions options = {.height = 16, .width = 16, .channels = 3, .outputs = 10, .batch_max = 4};
  for (const char* name : {"lenet5", "mnist_cnn", "resnet20", "mobilenet_v2"}) {
    std::unique_ptr<Network> network = LoadNetwork(&device, name, options);
    std::vector<float> images(4 * 16 * 16 * 3), parameters(network->layout().element_count()), gradients(parameters);
    std::vector<int32_t> labels(4);
    const auto run = [&](int64_t batch) {
      const int64_t before = AllocationCount();
      const Network::TrainStep step = {.input = {.images = images.data(), .targets = labels.data(), .batch = batch},
                                       .parameters = parameters,
                                       .gradients = gradients};
      EXPECT_TRUE(network->Forward(step, Nothing).ok());
      EXPECT_TRUE(network->Backward(step, Nothing).ok());
      EXPECT_TRUE(network->Evaluate(step.input, parameters).ok());
      network->Result();
      return AllocationCount() - before;
    };
    EXPECT_EQ(run(4), 0) << "the largest batch is prepared by Create";
    for (const int64_t batch : {3, 0}) EXPECT_GT(run(batch), 0) << "the first step of " << batch;
    for (const int64_t batch : {4, 3, 0, 3, 4}) EXPECT_EQ(run(batch), 0) << name << " batch " << batch;
  }
}

// Notes from where each copy to the device reads.
class SourceDevice final : public IdleDevice {
 public:
  void CopyToDevice(const void* host, void* device, int64_t size_bytes) override {
    sources.push_back(host);
    IdleDevice::CopyToDevice(host, device, size_bytes);
  }
  std::vector<const void*> sources;
};

// A GPU may read the zeros of every tensor after the last copy has been enqueued.
TEST(NetworkMemoryTest, ZerosStayInTheirPlaceWhileCopiesAreInFlight) {
  SourceDevice device;
  const std::string text =
      "layer { name: \"large\" dense { units: 8 } }\n"
      "layer { name: \"small\" dense { units: 3 } }\n";
  const std::unique_ptr<Network> network = MakeNetwork(&device, text);
  std::vector<float> parameters(network->layout().element_count()), gradients(parameters);
  const Network::TrainStep step = {.parameters = parameters, .gradients = gradients};
  ASSERT_TRUE(network->Forward(step, Nothing).ok());
  device.sources.clear();
  ASSERT_TRUE(network->Backward(step, Nothing).ok());
  ASSERT_EQ(device.sources.size(), 4u) << "weight and bias of both layers";
  EXPECT_THAT(device.sources, Each(device.sources[0]));
}

TEST(NetworkMemoryTest, ShippedModels) {
  ReferenceDevice device;
  const NetworkOptions mnist = {.height = 28, .width = 28, .channels = 1, .outputs = 10, .batch_max = 64};
  const NetworkOptions cifar = {.height = 32, .width = 32, .channels = 3, .outputs = 10, .batch_max = 64};
  for (const char* name : {"logreg", "mlp", "lenet5", "mnist_cnn"}) {
    RecordProperty(absl::StrCat(name, "_arena_bytes"), absl::StrCat(LoadNetwork(&device, name, mnist)->arena_bytes()));
  }
  // Each of the 19 convolutions keeps its output and the normalised output: 16 Ki floats a sample in the first stage.
  const int64_t resnet_bytes = LoadNetwork(&device, "resnet20", cifar)->arena_bytes();
  RecordProperty("resnet20_arena_bytes", absl::StrCat(resnet_bytes));
  EXPECT_LT(resnet_bytes, int64_t{64} * 4 * 1024 * 1024);
}

TEST(NetworkErrorTest, ShapesThatDoNotFitAreRefusedWithTheirLine) {
  ReferenceDevice device;
  absl::StatusOr<LayerFile> file = LayerFile::Parse("layer { name: \"fc\"\n dense { units: 10 } }", "ten.textproto");
  NetworkOptions options = {.height = 28, .width = 28, .channels = 1, .outputs = 26, .batch_max = 1};
  absl::Status status = Network::Create(*file, options, &device).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ten.textproto:2:"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("10 outputs, the data set has 26 classes"));
  file = LayerFile::Load("lenet5");
  EXPECT_TRUE(Network::Create(*file, options, &device).ok());
  options = {.height = 6, .width = 6, .channels = 1, .outputs = 10, .batch_max = 1};
  status = Network::Create(*file, options, &device).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer conv2: kernel 5 is larger than its input, 3 x 3 x 6"));
}

class WithoutMaxPool : public ReferenceDevice {
  absl::StatusOr<std::unique_ptr<LayerOperation>> CreateOperation(const OperationSpec& spec) override {
    if (!std::holds_alternative<Pool2dSpec>(spec)) return ReferenceDevice::CreateOperation(spec);
    return absl::InvalidArgumentError("there is no max pool here");
  }
};
class WithoutMemory : public ReferenceDevice {
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t size_bytes) override {
    return absl::ResourceExhaustedError(absl::StrCat(size_bytes, " bytes do not fit"));
  }
};

TEST(NetworkErrorTest, WhatTheDeviceCannotDoIsSaidByCreate) {
  absl::StatusOr<LayerFile> file = LayerFile::Parse(kSmall, "test.textproto");
  WithoutMaxPool without_pool;
  absl::Status status = Network::Create(*file, kSmallOptions, &without_pool).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "test.textproto:3:22: layer pool: there is no max pool here");
  WithoutMemory without_memory;
  status = Network::Create(*file, kSmallOptions, &without_memory).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("activations and gradients of test.textproto: "));
}

}  // namespace
}  // namespace starring
