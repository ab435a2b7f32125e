#include "worker/model/network_graph.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/arithmetic/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/layer_file.h"

namespace starring {
namespace {

constexpr NetworkGraph::DataShape kMnist{.height = 28, .width = 28, .channels = 1, .outputs = 10};
constexpr NetworkGraph::DataShape kCifar{.height = 32, .width = 32, .channels = 3, .outputs = 10};

NetworkGraph GraphOf(const std::string& model, const NetworkGraph::DataShape& data) {
  return *NetworkGraph::Create(*LayerFile::Load(model), data);
}

std::vector<float> Initial(const NetworkGraph& graph, uint64_t seed) {
  std::vector<float> parameters(graph.layout().element_count(), -5.0f);
  InitializeParameters(graph, seed, parameters);
  return parameters;
}

std::vector<float> ValuesOf(const NetworkGraph& graph, const std::vector<float>& parameters, const std::string& name) {
  for (const Tensor& tensor : graph.layout().tensors()) {
    if (tensor.spec.name == name) {
      return {parameters.begin() + tensor.range.begin, parameters.begin() + tensor.range.end};
    }
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

// PyTorch's shape and default initialiser: kaiming_uniform_(a=sqrt(5)) is uniform within 1/sqrt(fan_in).
struct Expected {
  std::string name;
  double fan_in;
};

void ExpectUniform(const std::vector<float>& values, double bound, const std::string& name) {
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const double count = static_cast<double>(values.size());
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*low, -bound * (1 + 1e-6)) << name;
  EXPECT_LE(*high, bound * (1 + 1e-6)) << name;
  // Five standard deviations of the mean (bound / sqrt(3 n)) and of the mean square (bound^2 sqrt(4 / 45 / n)).
  EXPECT_NEAR(sum / count, 0, 5 * bound / std::sqrt(3 * count)) << name;
  EXPECT_NEAR(squares / count, bound * bound / 3, 5 * bound * bound * std::sqrt(4.0 / 45 / count)) << name;
  // The largest of n uniform values misses the bound by bound / n on average: the whole range is used.
  if (count < 100) return;
  EXPECT_GT(*high, bound * (1 - 30 / count)) << name;
  EXPECT_LT(*low, -bound * (1 - 30 / count)) << name;
}

TEST(ParameterInitTest, HasPyTorchsDistributions) {
  const NetworkGraph graph = GraphOf("mnist_cnn", kMnist);
  const std::vector<float> parameters = Initial(graph, 3);
  for (const auto& [name, fan_in] :
       {Expected{"conv1.weight", 9}, Expected{"conv1.bias", 9}, Expected{"conv2.weight", 288},
        Expected{"conv2.bias", 288}, Expected{"fc1.weight", 9216}, Expected{"fc1.bias", 9216},
        Expected{"fc2.weight", 128}, Expected{"fc2.bias", 128}}) {
    ExpectUniform(ValuesOf(graph, parameters, name), 1 / std::sqrt(fan_in), name);
  }
}

TEST(ParameterInitTest, BatchNormBeginsAsIdentity) {
  const NetworkGraph graph = GraphOf("resnet20", kCifar);
  const std::vector<float> parameters = Initial(graph, 3);
  EXPECT_THAT(ValuesOf(graph, parameters, "layer2.0.bn1.weight"), testing::Each(1.0f));
  EXPECT_THAT(ValuesOf(graph, parameters, "layer2.0.bn1.bias"), testing::Each(0.0f));
  ExpectUniform(ValuesOf(graph, parameters, "layer2.0.downsample.0.weight"), 0.25, "downsample");
}

TEST(ParameterInitTest, SeedAndTensorDecide) {
  const NetworkGraph graph = GraphOf("mlp", kMnist);
  const std::vector<float> parameters = Initial(graph, 3);
  EXPECT_EQ(parameters, Initial(graph, 3));
  EXPECT_NE(ValuesOf(graph, parameters, "fc3.weight"), ValuesOf(graph, Initial(graph, 4), "fc3.weight"));
  // fc1.bias and fc2.bias have different bounds; their values must differ as fractions of these too.
  const std::vector<float> a = ValuesOf(graph, parameters, "fc1.bias"), b = ValuesOf(graph, parameters, "fc2.bias");
  EXPECT_GT(std::abs(a[0] * 28 - b[0] * 32), 1e-3);
  EXPECT_NE(Initial(graph, uint64_t{1} << 40), Initial(graph, 0)) << "the seed has 64 bits";
}

// The number that PyTorch's element e gets does not depend on our memory order.
TEST(ParameterInitTest, ElementsAreCountedInPyTorchsOrder) {
  const NetworkGraph graph = GraphOf("lenet5", kMnist);
  const std::vector<float> parameters = Initial(graph, 3);
  // Tensor 4, fc1.weight, is (120, 16 * 5 * 5) in PyTorch and (120, 5, 5, 16) here.
  const std::vector<float> values = ValuesOf(graph, parameters, "fc1.weight");
  const RandomKey key{.seed = 3, .purpose = RandomPurpose::kInit, .stream = 4};
  for (const int64_t element : {0, 1, 25, 399, 400, 12345, 47999}) {
    const int64_t out = element / 400, channel = element % 400 / 25, row = element % 25 / 5, column = element % 5;
    const float expected = (2 * UnitFloat(key.At(element / 4)[element % 4]) - 1) * 0.05f;
    EXPECT_EQ(values[((out * 5 + row) * 5 + column) * 16 + channel], expected) << element;
  }
}

TEST(ParameterInitTest, GapsAreZero) {
  const NetworkGraph graph = GraphOf("lenet5", kMnist);
  const std::vector<float> parameters = Initial(graph, 3);
  for (int64_t e = 0; e < graph.layout().element_count(); ++e) {
    if (!graph.layout().TensorAt(e).empty()) continue;
    EXPECT_EQ(parameters[e], 0);
  }
}

}  // namespace
}  // namespace starring
