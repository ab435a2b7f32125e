// Networks that store activations in bfloat16, on the emulated GPU.
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"

namespace starring {
namespace {

using testing::HasSubstr;
using Arrive = Network::TrainStep::Parameters;

constexpr int64_t kBatch = 4;
constexpr NetworkOptions kOptions = {.height = 12,
                                     .width = 12,
                                     .channels = 1,
                                     .outputs = 10,
                                     .batch_max = kBatch,
                                     .seed = 9,
                                     .element = Element::kBfloat16};
// Every kind of layer but those that only change shapes.
constexpr char kLayers[] =
    "layer { name: \"conv\" conv2d { out_channels: 8 kernel: 3 padding: 1 } }\n"
    "layer { name: \"bn\" batch_norm { relu: true } }\n"
    "layer { name: \"second\" conv2d { out_channels: 8 kernel: 3 padding: 1 } }\n"
    "layer { name: \"add\" input: \"second\" input: \"bn\" add { relu: true } }\n"
    "layer { name: \"depthwise\" conv2d { kernel: 3 padding: 1 depthwise: true } }\n"
    "layer { name: \"group\" group_norm { groups: 2 } }\n"
    "layer { name: \"silu\" activation { function: \"silu\" } }\n"
    "layer { name: \"joined\" input: \"silu\" input: \"add\" concat {} }\n"
    "layer { name: \"mean\" average_pool { kernel: 2 } }\n"
    "layer { name: \"pool\" max_pool { kernel: 2 } }\n"
    "layer { name: \"drop\" dropout { rate: 0.5 } }\n"
    "layer { name: \"fc\" dense { units: 24 relu: true } }\n"
    "layer { name: \"layer\" layer_norm {} }\n"
    "layer { name: \"last\" dense { units: 10 } }\n";

absl::Status Nothing(int) { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<Network>> Make(Device* device, const std::string& layers, NetworkOptions options) {
  return Network::Create(*LayerFile::Parse(layers, "test.textproto"), options, device);
}

class NetworkBf16Test : public testing::Test {
 protected:
  NetworkBf16Test() {
    cuda_emulation::Gpu() = {.cudnn_version = 91900};
    device_ = CreateCudaDevice({.math = CudaMath::kBf16, .convolutions = CudaConvolutions::kCudnn}).value();
    network_ = Make(device_.get(), kLayers, kOptions).value();
    parameters_.resize(static_cast<size_t>(network_->layout().element_count()));
    network_->InitializeParameters(1, parameters_);
    std::mt19937 random(1);
    std::vector<float> images(kBatch * 144);
    for (float& value : images) value = std::normal_distribution<float>()(random);
    images_ = device_->Allocate(std::ssize(images) * BytesOf(Element::kBfloat16)).value();
    device_->Cast(images.data(), Images(), std::ssize(images));  // the emulation's memory is the host's
    for (int64_t i = 0; i < kBatch; ++i) labels_.push_back(static_cast<int32_t>(random() % 10));
  }
  ~NetworkBf16Test() override {
    network_.reset();
    images_.reset();
    device_.reset();
    cuda_emulation::Gpu() = {};
  }

  Elements Images() const { return {Element::kBfloat16, images_->data()}; }
  NetworkInput Input() const { return {.images = Images(), .targets = labels_.data(), .batch = kBatch}; }

  // The loss, then all gradients.
  std::vector<float> Train(Arrive arrive) {
    gradients_.assign(parameters_.size(), -99);
    const Network::TrainStep step = {.input = Input(),
                                     .step = 4,
                                     .loss_scale = 0.25f,
                                     .parameters = parameters_,
                                     .gradients = gradients_,
                                     .arrive = arrive};
    EXPECT_TRUE(network_->Forward(step, Nothing).ok());
    EXPECT_TRUE(network_->Backward(step, Nothing).ok());
    std::vector<float> all = {static_cast<float>(network_->Result().loss_sum)};
    all.insert(all.end(), gradients_.begin(), gradients_.end());
    return all;
  }
  double Evaluate() {
    EXPECT_TRUE(network_->Evaluate(Input(), parameters_).ok());
    return network_->Result().loss_sum;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<DeviceBuffer> images_;
  std::vector<float> parameters_, gradients_;
  std::vector<int32_t> labels_;
};

TEST_F(NetworkBf16Test, ParametersAreRoundedByLayersAsAtOnce) {
  Train(Arrive::kBefore);
  // Each finds the rounded parameters of another step.
  for (float& value : parameters_) value *= 1.25f;
  const std::vector<float> by_layers = Train(Arrive::kByLayer);
  for (const float value : by_layers) ASSERT_TRUE(std::isfinite(value));
  EXPECT_EQ(Train(Arrive::kBefore), by_layers);
}

TEST_F(NetworkBf16Test, EveryStepAndEvaluationReadsTheParametersOfItsTime) {
  const std::vector<float> before = parameters_;
  const auto scale = [&] {
    for (float& value : parameters_) value *= 1.25f;
  };
  for (const Arrive arrive : {Arrive::kBefore, Arrive::kByLayer}) {
    const std::vector<float> first = Train(arrive);
    scale();
    EXPECT_NE(Train(arrive)[0], first[0]);
    parameters_ = before;
    EXPECT_EQ(Train(arrive), first);
  }
  const double evaluated = Evaluate();
  scale();
  EXPECT_NE(Evaluate(), evaluated);
  parameters_ = before;
  EXPECT_EQ(Evaluate(), evaluated);
}

TEST_F(NetworkBf16Test, OutputsAndBiasOfTheLastLayerAreFloat32) {
  std::vector<float> outputs(kBatch * 10), others(outputs.size());
  Evaluate();
  ASSERT_TRUE(network_->ReadOutputs(outputs).ok());
  // A change that bfloat16 would not see beside a bias of that size.
  const Tensor& bias = network_->layout().tensors().back();
  ASSERT_EQ(bias.spec.name, "last.bias");
  parameters_[static_cast<size_t>(bias.range.begin)] += 1e-5f;
  Evaluate();
  ASSERT_TRUE(network_->ReadOutputs(others).ok());
  EXPECT_NEAR(others[0] - outputs[0], 1e-5, 2e-6);
  EXPECT_EQ(others[1], outputs[1]);
}

TEST(NetworkBf16SizeTest, TheArenaIsHalfAsLarge) {
  for (const char* const model : {"mlp", "lenet5", "mnist_cnn", "resnet20"}) {
    NetworkOptions options = {.height = 28, .width = 28, .channels = 1, .outputs = 10, .batch_max = 512};
    if (std::string(model) == "resnet20") options.height = options.width = 32, options.channels = 3;
    const NetworkSize wide = *Network::SizeOf(*LayerFile::Load(model), options);
    options.element = Element::kBfloat16;
    const NetworkSize narrow = *Network::SizeOf(*LayerFile::Load(model), options);
    RecordProperty(std::string(model) + "_bytes",
                   std::to_string(wide.arena_bytes) + " float32, " + std::to_string(narrow.arena_bytes) + " bfloat16");
    EXPECT_LE(narrow.arena_bytes, wide.arena_bytes * 55 / 100) << model;
    EXPECT_EQ(wide.rounded_bytes, 0);
    EXPECT_EQ(narrow.rounded_bytes, 2 * narrow.element_count);
  }
}

TEST_F(NetworkBf16Test, ALastLayerThatCannotWriteFloat32IsRefused) {
  const std::string last = "layer { name: \"fc\" dense { units: 10 } }\nlayer { name: \"end\" relu {} }\n";
  const absl::Status status = Make(device_.get(), last, kOptions).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer end: the last layer must be dense"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("use --math=tf32"));
  // A flatten is no layer that computes.
  EXPECT_TRUE(
      Make(device_.get(), "layer { name: \"fc\" dense { units: 10 } }\nlayer { name: \"f\" flatten {} }\n", kOptions)
          .ok());
}

}  // namespace
}  // namespace starring
