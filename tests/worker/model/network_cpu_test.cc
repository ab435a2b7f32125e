// Networks on the CPU device: they compute what the reference device computes, and the same bits every time.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/common/allocation_count.h"
#include "tests/worker/model/network_cases.h"
#include "tests/worker/model/reference_device.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"

namespace starring {
namespace {

absl::Status Nothing(int) { return absl::OkStatus(); }

std::unique_ptr<Device> MakeCpuDevice(int threads) {
  absl::StatusOr<std::unique_ptr<Device>> device = CreateCpuDevice({.threads = threads});
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// A network with its own parameters and data, all drawn from one seed.
class Trainee {
 public:
  Trainee(const LayerFile& file, const NetworkOptions& options, Device* device)
      : options_(options),
        images_(options.batch_max * options.height * options.width * options.channels),
        labels_(options.batch_max) {
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Create(file, options, device);
    EXPECT_TRUE(network.ok()) << network.status();
    network_ = *std::move(network);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : images_.span()) value = normal(random);
    for (int32_t& label : labels_) label = static_cast<int32_t>(random() % options.outputs);
    for (int64_t i = 0; i < options.batch_max * options.outputs; ++i) values_.push_back(i % 3 == 0 ? 1.0f : 0.0f);
    parameters_ = AlignedFloats(network_->layout().element_count());
    gradients_ = AlignedFloats(network_->layout().element_count());
    network_->InitializeParameters(1, parameters_.span());
    for (float& value : parameters_.span()) value += 0.1f * normal(random);
  }

  Network& network() { return *network_; }
  std::vector<float> gradients() const { return {gradients_.span().begin(), gradients_.span().end()}; }
  AlignedFloats& parameters() { return parameters_; }

  double Train(int64_t batch, int64_t step = 3) {
    const Network::TrainStep train = {.input = Input(batch),
                                      .step = step,
                                      .first_sample = 5,
                                      .loss_scale = 1 / static_cast<float>(std::max<int64_t>(batch, 1)),
                                      .parameters = parameters_.span(),
                                      .gradients = gradients_.span()};
    EXPECT_TRUE(network_->Forward(train, Nothing).ok());
    const double loss = network_->Result().loss_sum;
    EXPECT_TRUE(network_->Backward(train, Nothing).ok());
    return loss;
  }

  double Evaluate(int64_t batch) {
    EXPECT_TRUE(network_->Evaluate(Input(batch), parameters_.span()).ok());
    return network_->Result().loss_sum;
  }

 private:
  NetworkInput Input(int64_t batch) const {
    const bool are_labels = network_->loss() == LossKind::kSoftmax;
    const LossTargets targets = are_labels ? LossTargets(labels_.data()) : LossTargets(values_.data());
    return {.images = images_.data(), .targets = targets, .batch = batch};
  }

  const NetworkOptions options_;
  std::unique_ptr<Network> network_;
  AlignedFloats images_;
  std::vector<int32_t> labels_;
  std::vector<float> values_;  // for losses that compare with values
  AlignedFloats parameters_, gradients_;
};

class NetworkCpuTest : public testing::TestWithParam<NetworkCase> {
 protected:
  static NetworkOptions Options() {
    const NetworkCase& c = GetParam();
    return {.height = c.height,
            .width = c.width,
            .channels = c.channels,
            .outputs = c.classes,
            .batch_max = c.batch,
            .seed = 5};
  }
  static LayerFile File() { return *LayerFile::Parse(GetParam().layers, GetParam().name); }
};

TEST_P(NetworkCpuTest, AgreesWithTheReferenceDevice) {
  ReferenceDevice reference_device;
  Trainee reference(File(), Options(), &reference_device);
  const double expected_loss = reference.Train(GetParam().batch);
  const std::vector<float> expected = reference.gradients();
  const double expected_evaluation = reference.Evaluate(GetParam().batch);
  for (const int threads : {1, 3}) {
    SCOPED_TRACE(absl::StrCat(threads, " threads"));
    std::unique_ptr<Device> device = MakeCpuDevice(threads);
    Trainee trainee(File(), Options(), device.get());
    EXPECT_NEAR(trainee.Train(GetParam().batch), expected_loss, 1e-5 * expected_loss);
    const std::vector<float> gradients = trainee.gradients();
    for (const Tensor& tensor : trainee.network().layout().tensors()) {
      double largest = 0;
      for (int64_t e = tensor.range.begin; e < tensor.range.end; ++e) {
        largest = std::max(largest, std::abs(double{expected[e]}));
      }
      for (int64_t e = tensor.range.begin; e < tensor.range.end; ++e) {
        EXPECT_NEAR(gradients[e], expected[e], 1e-5 * (largest + 0.01)) << tensor.spec.name;
      }
    }
    EXPECT_NEAR(trainee.Evaluate(GetParam().batch), expected_evaluation, 1e-5 * expected_evaluation);
  }
}

const auto kName = [](const testing::TestParamInfo<NetworkCase>& c) { return c.param.name; };
INSTANTIATE_TEST_SUITE_P(Chains, NetworkCpuTest, testing::ValuesIn(kChainCases), kName);
INSTANTIATE_TEST_SUITE_P(Joins, NetworkCpuTest, testing::ValuesIn(kJoinCases), kName);

struct Shipped {
  const char* model;
  NetworkOptions options;
};
constexpr NetworkOptions kMnist = {.height = 28, .width = 28, .channels = 1, .outputs = 10, .batch_max = 9, .seed = 2};
constexpr NetworkOptions kCifar = {.height = 16, .width = 16, .channels = 3, .outputs = 10, .batch_max = 9, .seed = 2};

constexpr NetworkOptions kSmallCifar = {
    .height = 8, .width = 8, .channels = 3, .outputs = 10, .batch_max = 9, .seed = 2};
constexpr NetworkOptions kTable = {.height = 1, .width = 1, .channels = 14, .outputs = 2, .batch_max = 9, .seed = 2};

class ShippedCpuTest : public testing::TestWithParam<Shipped> {
 protected:
  std::unique_ptr<Device> device_ = MakeCpuDevice(2);
};

// Steps with other batch sizes, evaluations and empty batches in between do not change a bit.
TEST_P(ShippedCpuTest, SameBitsWhateverHappenedBefore) {
  const LayerFile file = *LayerFile::Load(GetParam().model);
  Trainee alone(file, GetParam().options, device_.get());
  const double expected_loss = alone.Train(9);
  const std::vector<float> expected = alone.gradients();

  Trainee busy(file, GetParam().options, device_.get());
  for (const int64_t batch : {2, 9, 0, 4, 2}) {
    busy.Train(batch, 8);
    busy.Evaluate(batch);
  }
  EXPECT_EQ(busy.Train(9), expected_loss);
  EXPECT_EQ(busy.gradients(), expected);
}

// oneDNN allocates a few small blocks for every primitive that it runs, and frees them again. Nothing else is
// allocated, and nothing grows. NetworkMemoryTest shows that the network itself allocates nothing.
TEST_P(ShippedCpuTest, AllocatesNoMoreThanOneDnnDoesItself) {
  Trainee trainee(*LayerFile::Load(GetParam().model), GetParam().options, device_.get());
  const auto allocations = [&](int64_t batch) {
    const int64_t before = AllocationCount();
    trainee.Train(batch, 4);
    trainee.Evaluate(batch);
    return AllocationCount() - before;
  };
  for (const int64_t batch : {9, 4, 0}) allocations(batch);
  const int64_t layer_count = trainee.network().layer_count();
  for (const int64_t batch : {9, 4, 9, 4}) EXPECT_LE(allocations(batch), 60 * layer_count) << "batch " << batch;
  EXPECT_EQ(allocations(0), 0);
  for (const int64_t batch : {9, 4}) EXPECT_EQ(allocations(batch), allocations(batch));
}

INSTANTIATE_TEST_SUITE_P(Models, ShippedCpuTest,
                         testing::Values(Shipped{"logreg", kMnist}, Shipped{"mlp", kMnist}, Shipped{"lenet5", kMnist},
                                         Shipped{"mnist_cnn", kMnist}, Shipped{"resnet20", kCifar},
                                         Shipped{"resnet18", kSmallCifar}, Shipped{"mobilenet_v2", kSmallCifar},
                                         Shipped{"tabular_mlp", kTable}),
                         [](const testing::TestParamInfo<Shipped>& s) { return std::string(s.param.model); });

}  // namespace
}  // namespace starring
