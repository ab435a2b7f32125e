// Backward against central differences of the loss, for networks that reach every rule of network_program.h.
//
// The loss is computed in float activations with double sums, so it carries a relative noise of some 1e-7; with a step
// of h = 4e-3 that is 3e-5 in the difference, and the truncation h^2 / 6 * f''' is of the same size for values of order
// 1. A ReLU or a maximum whose winner changes within the step makes the difference meaningless. Such elements show by
// central differences at h and h / 2 that disagree, or by a bend between the left and the right difference that does
// not halve with the step; they are left out and counted, and few are allowed.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/model/reference_device.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"

namespace starring {
namespace {

constexpr float kGap = 7;  // in front: what backward must leave alone
constexpr double kStep = 4e-3;
constexpr double kTolerance = 1e-3;

struct Case {
  const char* name;
  const char* layers;
  int64_t height, width, channels, classes, batch;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class NetworkGradientTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    absl::StatusOr<LayerFile> file = LayerFile::Parse(c.layers, c.name);
    ASSERT_TRUE(file.ok()) << file.status();
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Create(*file,
                                                                       {.height = c.height,
                                                                        .width = c.width,
                                                                        .channels = c.channels,
                                                                        .classes = c.classes,
                                                                        .batch_max = c.batch + 2,
                                                                        .seed = 5},
                                                                       &device_);
    ASSERT_TRUE(network.ok()) << network.status();
    network_ = *std::move(network);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    images_.resize(c.batch * c.height * c.width * c.channels);
    for (float& value : images_) value = normal(random);
    labels_.resize(c.batch);
    for (int32_t& label : labels_) label = static_cast<int32_t>(random() % c.classes);
    parameters_.resize(network_->layout().element_count());
    // Not the initial ones: gradients of order 1 everywhere, batch norm's too.
    for (float& value : parameters_) value = 0.5f * normal(random);
    gradients_.assign(parameters_.size(), kGap);
    for (const Tensor& tensor : network_->layout().tensors()) {
      for (int64_t e = tensor.range.begin; e < tensor.range.end; ++e) {
        gradients_[e] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  Network::TrainStep Step() {
    return {.input = {.images = images_.data(), .labels = labels_.data(), .batch = GetParam().batch},
            .step = 3,
            .first_sample = 11,
            .loss_scale = 1 / static_cast<float>(GetParam().batch),
            .parameters = parameters_,
            .gradients = gradients_};
  }

  double Loss() {
    EXPECT_TRUE(network_->Forward(Step(), [](int) { return absl::OkStatus(); }).ok());
    return network_->Result().loss_sum / static_cast<double>(GetParam().batch);
  }

  struct Slopes {
    double left, right;
    double center() const { return (left + right) / 2; }
    double bend() const { return std::abs(right - left); }
  };
  Slopes SlopesAt(int64_t element, double step, double loss) {
    const float before = parameters_[element];
    // The steps that float can really make.
    parameters_[element] = static_cast<float>(before + step);
    const double right = (Loss() - loss) / (double{parameters_[element]} - before);
    parameters_[element] = static_cast<float>(before - step);
    const double left = (Loss() - loss) / (double{parameters_[element]} - before);
    parameters_[element] = before;
    return {left, right};
  }

  ReferenceDevice device_;
  std::unique_ptr<Network> network_;
  std::vector<float> images_;
  std::vector<int32_t> labels_;
  std::vector<float> parameters_, gradients_;
};

TEST_P(NetworkGradientTest, MatchesFiniteDifferences) {
  const double loss = Loss();
  ASSERT_TRUE(network_->Backward(Step(), [](int) { return absl::OkStatus(); }).ok());
  int64_t checked = 0, kinks = 0;
  double largest = 0;
  for (const Tensor& tensor : network_->layout().tensors()) {
    for (int64_t e = tensor.range.begin; e < tensor.range.end; ++e) {
      const Slopes wide = SlopesAt(e, kStep, loss);
      const Slopes close = SlopesAt(e, kStep / 2, loss);
      const double tolerance = kTolerance * (1 + std::abs(close.center()));
      const bool bends = close.bend() > tolerance && close.bend() > 0.75 * wide.bend();
      if (bends || std::abs(wide.center() - close.center()) > tolerance) {
        ++kinks;
        continue;
      }
      ++checked;
      EXPECT_NEAR(gradients_[e], close.center(), tolerance)
          << tensor.spec.name << " element " << e - tensor.range.begin;
      largest = std::max(largest, std::abs(double{gradients_[e]}));
      gradients_[e] = kGap;
    }
  }
  EXPECT_GT(checked, 9 * kinks) << "too many kinks: " << kinks;
  EXPECT_GT(largest, 0.05) << "gradients of nothing";
}

TEST_P(NetworkGradientTest, LeavesGapsAlone) {
  Loss();
  ASSERT_TRUE(network_->Backward(Step(), [](int) { return absl::OkStatus(); }).ok());
  const Layout& layout = network_->layout();
  for (int64_t e = 0; e < layout.element_count(); ++e) {
    if (layout.TensorAt(e).empty()) {
      EXPECT_EQ(gradients_[e], kGap) << e;
    } else {
      EXPECT_FALSE(std::isnan(gradients_[e])) << layout.TensorAt(e);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Chains, NetworkGradientTest,
    testing::Values(
        Case{"Dense", "layer { name: \"fc\" dense { units: 3 } }", 1, 5, 1, 3, 4},
        Case{"DenseReluLast", "layer { name: \"fc\" dense { units: 3 relu: true } }", 3, 1, 2, 3, 7},
        Case{"DenseWithoutBias",
             "layer { name: \"a\" dense { units: 5 relu: true no_bias: true } } layer { name: \"fc\" dense { units: 3 "
             "} }",
             2, 3, 1, 3, 5},
        Case{"ConvPoolDense",
             "layer { name: \"c\" conv2d { out_channels: 3 kernel: 3 padding: 1 relu: true } }"
             "layer { name: \"p\" max_pool { kernel: 2 } } layer { name: \"fc\" dense { units: 3 } }",
             7, 5, 2, 3, 3},
        Case{"ConvStrideFlatten",
             "layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 stride: 2 no_bias: true } }"
             "layer { name: \"r\" relu {} } layer { name: \"f\" flatten {} } layer { name: \"fc\" dense { units: 4 } }",
             8, 7, 3, 4, 3},
        Case{"ConvConv",
             "layer { name: \"c\" conv2d { out_channels: 2 kernel: 2 padding: 2 stride: 3 relu: true } }"
             "layer { name: \"d\" conv2d { out_channels: 3 kernel: 1 } } layer { name: \"fc\" dense { units: 2 } }",
             5, 5, 1, 2, 4},
        Case{"OverlappingPool",
             "layer { name: \"c\" conv2d { out_channels: 2 kernel: 1 } }"
             "layer { name: \"p\" max_pool { kernel: 3 stride: 2 padding: 1 } } layer { name: \"fc\" dense { units: 2 "
             "} }",
             5, 7, 2, 2, 3},
        Case{
            "AverageAndNorm",
            "layer { name: \"c\" conv2d { out_channels: 3 kernel: 3 } } layer { name: \"n\" batch_norm { relu: true } }"
            "layer { name: \"g\" global_average_pool {} } layer { name: \"fc\" dense { units: 3 } }",
            5, 6, 2, 3, 4},
        Case{"NormFirst",
             "layer { name: \"n\" batch_norm {} } layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 } }"
             "layer { name: \"fc\" dense { units: 3 } }",
             4, 4, 2, 3, 5},
        Case{"NormOfUnits",
             "layer { name: \"a\" dense { units: 5 no_bias: true } } layer { name: \"n\" batch_norm {} }"
             "layer { name: \"r\" relu {} } layer { name: \"fc\" dense { units: 3 } }",
             2, 2, 1, 3, 6},
        Case{"DropoutInPlace",
             "layer { name: \"a\" dense { units: 7 relu: true } } layer { name: \"d\" dropout { rate: 0.4 } }"
             "layer { name: \"e\" dropout { rate: 0.25 } } layer { name: \"fc\" dense { units: 3 } }",
             3, 3, 1, 3, 6},
        Case{"DropoutOfTheImage",
             "layer { name: \"d\" dropout { rate: 0.3 } } layer { name: \"r\" relu {} }"
             "layer { name: \"fc\" dense { units: 3 } }",
             3, 3, 1, 3, 5},
        Case{"NothingToTrainBelow",
             "layer { name: \"p\" max_pool { kernel: 2 } } layer { name: \"f\" flatten {} } layer { name: \"r\" relu "
             "{} }"
             "layer { name: \"fc\" dense { units: 3 } }",
             4, 4, 3, 3, 5}),
    [](const testing::TestParamInfo<Case>& c) { return c.param.name; });

#define CONV "conv2d { out_channels: 2 kernel: 3 padding: 1 no_bias: true }"
#define END "layer { name: \"g\" global_average_pool {} } layer { name: \"fc\" dense { units: 3 } }"

INSTANTIATE_TEST_SUITE_P(
    Joins, NetworkGradientTest,
    testing::Values(
        Case{"ResidualBlock",
             "layer { name: \"c0\" " CONV " } layer { name: \"n0\" batch_norm { relu: true } }"
             "layer { name: \"c1\" " CONV " } layer { name: \"n1\" batch_norm { relu: true } }"
             "layer { name: \"c2\" " CONV " } layer { name: \"n2\" batch_norm {} }"
             "layer { name: \"a\" input: \"n2\" input: \"n0\" add { relu: true } }" END,
             4, 5, 2, 3, 3},
        Case{"ProjectedBlock",
             "layer { name: \"c0\" " CONV " } layer { name: \"n0\" batch_norm { relu: true } }"
             "layer { name: \"c1\" conv2d { out_channels: 3 kernel: 3 stride: 2 padding: 1 } }"
             "layer { name: \"n1\" batch_norm {} }"
             "layer { name: \"s0\" input: \"n0\" conv2d { out_channels: 3 kernel: 1 stride: 2 no_bias: true } }"
             "layer { name: \"s1\" batch_norm {} }"
             "layer { name: \"a\" input: \"n1\" input: \"s1\" add { relu: true } }" END,
             5, 4, 2, 3, 4},
        Case{"AddOfTheSame",
             "layer { name: \"c\" " CONV " } layer { name: \"a\" input: \"c\" input: \"c\" add {} }" END, 4, 4, 2, 3,
             3},
        // Both readers of the shared gradient want to mask it in place.
        Case{"AddOfTwoFusedRelus",
             "layer { name: \"c\" input: \"input\" conv2d { out_channels: 2 kernel: 1 relu: true } }"
             "layer { name: \"d\" input: \"input\" conv2d { out_channels: 2 kernel: 1 relu: true } }"
             "layer { name: \"a\" input: \"c\" input: \"d\" add {} }" END,
             3, 4, 2, 3, 4},
        Case{"AddOfReluAndDropout",
             "layer { name: \"c\" " CONV " } layer { name: \"r\" input: \"c\" relu {} }"
             "layer { name: \"d\" input: \"c\" dropout { rate: 0.3 } }"
             "layer { name: \"a\" input: \"r\" input: \"d\" add {} }" END,
             4, 4, 2, 3, 4},
        Case{"AddOfTheImage",
             "layer { name: \"c\" " CONV
             " } layer { name: \"a\" input: \"input\" input: \"c\" add { relu: true } }" END,
             4, 4, 2, 3, 3},
        Case{"AddFollowsAdd",
             "layer { name: \"c\" " CONV " } layer { name: \"d\" " CONV " } layer { name: \"e\" " CONV " }"
             "layer { name: \"a\" input: \"c\" input: \"e\" add {} } layer { name: \"b\" input: \"a\" input: \"d\" add "
             "{} }"
             "layer { name: \"f\" input: \"b\" input: \"c\" add { relu: true } }" END,
             4, 3, 2, 3, 3},
        // The flattened view and the image are one storage: neither may be written in place.
        Case{"FlattenShared",
             "layer { name: \"c\" conv2d { out_channels: 1 kernel: 1 } } layer { name: \"f\" input: \"c\" flatten {} }"
             "layer { name: \"r\" input: \"f\" relu {} } layer { name: \"u\" input: \"r\" dense { units: 3 } }"
             "layer { name: \"v\" input: \"c\" dense { units: 3 } } layer { name: \"a\" input: \"u\" input: \"v\" add "
             "{} }",
             2, 3, 2, 3, 5},
        Case{"ThreeReaders",
             "layer { name: \"a\" dense { units: 3 relu: true } } layer { name: \"b\" input: \"a\" dense { units: 3 } }"
             "layer { name: \"c\" input: \"a\" dense { units: 3 relu: true } }"
             "layer { name: \"d\" input: \"a\" input: \"b\" add {} } layer { name: \"e\" input: \"d\" input: \"c\" add "
             "{} }",
             2, 2, 1, 3, 5}),
    [](const testing::TestParamInfo<Case>& c) { return c.param.name; });

}  // namespace
}  // namespace starring
