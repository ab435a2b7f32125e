#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

using reference::Values;

std::vector<BatchNormSpec> Shapes() {
  return {
      {.batch = 2, .height = 1, .width = 1, .channels = 1},    {.batch = 63, .height = 3, .width = 5, .channels = 3},
      {.batch = 1, .height = 7, .width = 5, .channels = 17},   {.batch = 5, .height = 8, .width = 8, .channels = 16},
      {.batch = 3, .height = 32, .width = 32, .channels = 16}, {.batch = 7, .height = 1, .width = 1, .channels = 84},
      {.batch = 2, .height = 2, .width = 3, .channels = 5000}, {.batch = 5, .height = 7, .width = 31, .channels = 4},
      {.batch = 3, .height = 9, .width = 11, .channels = 12},  {.batch = 5, .height = 16, .width = 16, .channels = 36},
  };
}

std::string Describe(const BatchNormSpec& s) {
  return absl::StrCat(s.batch, "x", s.height, "x", s.width, "x", s.channels,
                      s.activation == Activation::kRelu ? ", relu" : "");
}

class BatchNormCase {
 public:
  BatchNormCase(DeviceTest* test, const BatchNormSpec& s)
      : device_(test->device()),
        spec_(s),
        x_(test->Random(s.batch * s.height * s.width * s.channels)),
        gamma_(test->Random(s.channels)),
        beta_(test->Random(s.channels)),
        mean_(test->Random(s.channels)),
        variance_(test->Random(s.channels)),
        dy_(test->Random(static_cast<int64_t>(x_.size()))) {
    for (float& v : variance_) v = std::abs(v) + 0.5f;
  }

  // Moves all x far from zero: a variance computed as the mean of squares minus the square of the mean would lose all
  // digits.
  void ShiftInput(float distance) {
    for (float& v : x_) v += distance;
  }

  struct Results {
    std::vector<float> y, running_mean, running_variance, dx, dgamma, dbeta, inferred;
    friend bool operator==(const Results&, const Results&) = default;
  };

  Results Run(int offset_lines = 0) {
    auto created = device_->CreateBatchNorm(spec_);
    EXPECT_TRUE(created.ok()) << created.status();
    if (!created.ok()) return {};
    BatchNorm& norm = **created;
    DeviceTensor x(device_, x_, offset_lines), gamma(device_, gamma_), beta(device_, beta_, offset_lines);
    DeviceTensor mean(device_, mean_), variance(device_, variance_), dy(device_, dy_, offset_lines);
    const int64_t count = static_cast<int64_t>(x_.size());
    DeviceTensor y(device_, count), dx(device_, count, offset_lines), inferred(device_, count);
    DeviceTensor dgamma(device_, spec_.channels), dbeta(device_, spec_.channels);
    norm.Infer(x.data(), gamma.data(), beta.data(), mean.data(), variance.data(), inferred.data());
    norm.Forward(x.data(), gamma.data(), beta.data(), mean.data(), variance.data(), y.data());
    norm.Backward(x.data(), gamma.data(), y.data(), dy.data(), dx.data(), dgamma.data(), dbeta.data());
    return {y.Host(), mean.Host(), variance.Host(), dx.Host(), dgamma.Host(), dbeta.Host(), inferred.Host()};
  }

  void CheckForward(double tolerance) {
    const Results got = Run();
    const Values x = ToDouble(x_), gamma = ToDouble(gamma_), beta = ToDouble(beta_);
    const reference::Moments moments = reference::BatchMoments(spec_, x);
    EXPECT_TRUE(Near(got.y, reference::BatchNorm(spec_, x, gamma, beta, moments), tolerance)) << "y";
    const reference::Moments running = {ToDouble(mean_), ToDouble(variance_)};
    EXPECT_TRUE(Near(got.inferred, reference::BatchNorm(spec_, x, gamma, beta, running), tolerance)) << "infer";
    const double rows = static_cast<double>(spec_.batch * spec_.height * spec_.width);
    Values mean(mean_.size()), variance(mean_.size());
    // The running variance is unbiased, as PyTorch's, unlike the one that normalises the batch.
    for (size_t c = 0; c < mean.size(); ++c) {
      mean[c] = (1 - double{spec_.momentum}) * mean_[c] + spec_.momentum * moments.mean[c];
      variance[c] =
          (1 - double{spec_.momentum}) * variance_[c] + spec_.momentum * moments.variance[c] * rows / (rows - 1);
    }
    EXPECT_TRUE(Near(got.running_mean, mean, 1e-6)) << "running mean";
    EXPECT_TRUE(Near(got.running_variance, variance, tolerance)) << "running variance";
  }

  void CheckGradients() {
    const Results got = Run();
    const Values x = ToDouble(x_), gamma = ToDouble(gamma_), beta = ToDouble(beta_);
    const Values dy = ThroughActivation(spec_.activation, got.y, dy_);
    BatchNormSpec linear = spec_;  // dy is masked already, so the loss needs no activation
    linear.activation = Activation::kNone;
    const auto check = [&](const std::vector<float>& gradient, const Values& at, const char* name,
                           const std::function<double(const Values&)>& loss) {
      for (const int64_t i : SampleOf(static_cast<int64_t>(at.size()))) {
        const double want = reference::FiniteDifference(loss, at, i);
        EXPECT_NEAR(gradient[i], want, 2e-4 * std::max(1.0, std::abs(want))) << name << "[" << i << "]";
      }
    };
    const auto loss = [&](const Values& v, const Values& g, const Values& b) {
      return reference::Dot(reference::BatchNorm(linear, v, g, b, reference::BatchMoments(spec_, v)), dy);
    };
    check(got.dx, x, "dx", [&](const Values& v) { return loss(v, gamma, beta); });
    check(got.dgamma, gamma, "dgamma", [&](const Values& v) { return loss(x, v, beta); });
    check(got.dbeta, beta, "dbeta", [&](const Values& v) { return loss(x, gamma, v); });
  }

 private:
  Device* const device_;
  const BatchNormSpec spec_;
  std::vector<float> x_, gamma_, beta_, mean_, variance_, dy_;
};

TEST_P(DeviceTest, BatchNormMatchesTheReferenceAndFiniteDifferences) {
  for (BatchNormSpec spec : Tested(Shapes())) {
    for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
      spec.activation = activation;
      SCOPED_TRACE(Describe(spec));
      BatchNormCase test(this, spec);
      test.CheckForward(2e-5);
      test.CheckGradients();
      EXPECT_TRUE(test.Run() == test.Run(1)) << "at another address";
    }
  }
}

TEST_P(DeviceTest, BatchNormSurvivesAMeanFarFromZero) {
  BatchNormCase test(this, {.batch = 32, .height = 4, .width = 4, .channels = 16});
  test.ShiftInput(1000);
  test.CheckForward(2e-3);  // so far from zero, x itself is exact to about 1e-4 only
}

// The last batch of an epoch may leave a rank one sample. It has no variance, but must not become NaN.
TEST_P(DeviceTest, BatchNormOfOneValueIsBetaAndKeepsTheRunningVariance) {
  auto norm = device()->CreateBatchNorm({.batch = 1, .height = 1, .width = 1, .channels = 3});
  ASSERT_TRUE(norm.ok()) << norm.status();
  DeviceTensor x(device(), {5, -6, 7}), gamma(device(), {1, 2, 3}), beta(device(), {4, 5, 6});
  DeviceTensor mean(device(), {0, 0, 1}), variance(device(), {1, 2, 3});
  DeviceTensor y(device(), 3), dy(device(), {1, 1, 1}), dx(device(), 3), dgamma(device(), 3), dbeta(device(), 3);
  (*norm)->Forward(x.data(), gamma.data(), beta.data(), mean.data(), variance.data(), y.data());
  (*norm)->Backward(x.data(), gamma.data(), y.data(), dy.data(), dx.data(), dgamma.data(), dbeta.data());
  EXPECT_THAT(y.Host(), testing::ElementsAre(4, 5, 6));
  EXPECT_TRUE(Near(mean.Host(), {0.5, -0.6, 1.6}, 1e-6));
  EXPECT_THAT(variance.Host(), testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(dx.Host(), testing::Each(0));
  EXPECT_THAT(dgamma.Host(), testing::Each(0));
  EXPECT_THAT(dbeta.Host(), testing::Each(1));
}

TEST_P(DeviceTest, BatchNormRefusesShapesThatMakeNoSense) {
  const auto refuses = [&](const BatchNormSpec& spec, const char* words) {
    const absl::Status status = device()->CreateBatchNorm(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << Describe(spec);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(words));
  };
  refuses({.batch = 0, .height = 1, .width = 1, .channels = 1}, "batch is 0");
  refuses({.batch = 1, .height = 1, .width = 1, .channels = -2}, "channels is -2");
  refuses({.batch = 4, .height = 1, .width = 1, .channels = 1, .epsilon = 0}, "epsilon is 0");
  refuses({.batch = 4, .height = 1, .width = 1, .channels = 1, .momentum = 1.5f}, "momentum is 1.5");
}

}  // namespace
}  // namespace starring
