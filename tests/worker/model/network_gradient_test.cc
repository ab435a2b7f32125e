// Compares backward with central differences of the loss, for networks that reach every rule of network_program.h.
//
// The loss is computed in float activations with double sums, so it carries a relative noise of some 1e-7; with a step
// of h = 4e-3 that is 3e-5 in the difference, and the truncation h^2 / 6 * f''' is of the same size for values of order
// 1. If a ReLU or a maximum changes its winner within the step, the difference is meaningless. Such an element is found
// because its central differences at h and h / 2 disagree, or because the bend between the left and the right
// difference does not halve with the step. It is left out and counted, and few are allowed.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/model/network_cases.h"
#include "tests/worker/model/reference_device.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"

namespace starring {
namespace {

constexpr float kGap = 7;  // in the gaps of the gradient before backward, which must leave it there
constexpr double kStep = 4e-3;
constexpr double kTolerance = 1e-3;

class NetworkGradientTest : public testing::TestWithParam<NetworkCase> {
 protected:
  void SetUp() override {
    const NetworkCase& c = GetParam();
    absl::StatusOr<LayerFile> file = LayerFile::Parse(c.layers, c.name);
    ASSERT_TRUE(file.ok()) << file.status();
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Create(*file,
                                                                       {.height = c.height,
                                                                        .width = c.width,
                                                                        .channels = c.channels,
                                                                        .outputs = c.classes,
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
    for (int64_t i = 0; i < c.batch * c.classes; ++i) values_.push_back(i % 3 == 0 ? 1.0f : 0.0f);
    parameters_.resize(network_->layout().element_count());
    // Not the initial values, so that all gradients are of order 1, also those of batch norm.
    for (float& value : parameters_) value = 0.5f * normal(random);
    gradients_.assign(parameters_.size(), kGap);
    for (const Tensor& tensor : network_->layout().tensors()) {
      for (int64_t e = tensor.range.begin; e < tensor.range.end; ++e) {
        gradients_[e] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  Network::TrainStep Step() {
    const bool are_labels = network_->loss() == LossKind::kSoftmax;
    const LossTargets targets = are_labels ? LossTargets(labels_.data()) : LossTargets(values_.data());
    return {.input = {.images = images_.data(), .targets = targets, .batch = GetParam().batch},
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
    // The steps after rounding to float.
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
  std::vector<float> values_;  // for losses that compare with values
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
  EXPECT_GT(largest, 0.05) << "all gradients are nearly 0, so nothing was compared";
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

const auto kName = [](const testing::TestParamInfo<NetworkCase>& c) { return c.param.name; };
INSTANTIATE_TEST_SUITE_P(Chains, NetworkGradientTest, testing::ValuesIn(kChainCases), kName);
INSTANTIATE_TEST_SUITE_P(Joins, NetworkGradientTest, testing::ValuesIn(kJoinCases), kName);

}  // namespace
}  // namespace starring
