#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

using reference::Values;

std::string Describe(const Conv2dSpec& s) {
  return absl::StrCat("batch ", s.batch, ", in ", s.in_height, "x", s.in_width, "x", s.in_channels, ", out channels ",
                      s.out_channels, ", kernel ", s.kernel_height, "x", s.kernel_width, ", stride ", s.stride_height,
                      "x", s.stride_width, ", padding ", s.padding_height, "x", s.padding_width,
                      s.bias == Bias::kNone ? ", no bias" : "", s.activation == Activation::kRelu ? ", relu" : "",
                      s.input_gradient == InputGradient::kNotNeeded ? ", no dx" : "");
}

// Shapes of the shipped models, and odd ones: size 1, primes, stride, padding beyond what the kernel needs, not square.
std::vector<Conv2dSpec> Shapes() {
  return {
      {.batch = 1, .in_height = 1, .in_width = 1, .in_channels = 1, .out_channels = 1},
      {.batch = 3, .in_height = 5, .in_width = 7, .in_channels = 17, .out_channels = 5},
      {.batch = 2,
       .in_height = 28,
       .in_width = 28,
       .in_channels = 1,
       .out_channels = 6,
       .kernel_height = 5,
       .kernel_width = 5,
       .padding_height = 2,
       .padding_width = 2},
      {.batch = 3,
       .in_height = 14,
       .in_width = 14,
       .in_channels = 6,
       .out_channels = 16,
       .kernel_height = 5,
       .kernel_width = 5},
      {.batch = 63,
       .in_height = 6,
       .in_width = 5,
       .in_channels = 3,
       .out_channels = 16,
       .kernel_height = 3,
       .kernel_width = 3,
       .padding_height = 1,
       .padding_width = 1},
      {.batch = 2,
       .in_height = 28,
       .in_width = 28,
       .in_channels = 1,
       .out_channels = 32,
       .kernel_height = 3,
       .kernel_width = 3},
      {.batch = 2,
       .in_height = 12,
       .in_width = 11,
       .in_channels = 32,
       .out_channels = 64,
       .kernel_height = 3,
       .kernel_width = 3},
      {.batch = 1,
       .in_height = 8,
       .in_width = 8,
       .in_channels = 64,
       .out_channels = 64,
       .kernel_height = 3,
       .kernel_width = 3,
       .padding_height = 1,
       .padding_width = 1},
      {.batch = 2,
       .in_height = 9,
       .in_width = 9,
       .in_channels = 16,
       .out_channels = 32,
       .kernel_height = 3,
       .kernel_width = 3,
       .stride_height = 2,
       .stride_width = 2,
       .padding_height = 1,
       .padding_width = 1},
      {.batch = 2,
       .in_height = 8,
       .in_width = 8,
       .in_channels = 16,
       .out_channels = 32,
       .stride_height = 2,
       .stride_width = 2},
      {.batch = 2,
       .in_height = 13,
       .in_width = 11,
       .in_channels = 5,
       .out_channels = 17,
       .kernel_height = 3,
       .kernel_width = 5,
       .stride_height = 2,
       .stride_width = 3,
       .padding_height = 2,
       .padding_width = 1},
      {.batch = 5,
       .in_height = 3,
       .in_width = 19,
       .in_channels = 2,
       .out_channels = 3,
       .kernel_height = 2,
       .kernel_width = 7,
       .stride_height = 1,
       .stride_width = 2,
       .padding_height = 0,
       .padding_width = 3},
      {.batch = 4,
       .in_height = 4,
       .in_width = 4,
       .in_channels = 3,
       .out_channels = 7,
       .kernel_height = 4,
       .kernel_width = 4},
      {.batch = 7,
       .in_height = 1,
       .in_width = 37,
       .in_channels = 1,
       .out_channels = 16,
       .kernel_height = 1,
       .kernel_width = 3},
      {.batch = 2,
       .in_height = 3,
       .in_width = 3,
       .in_channels = 2,
       .out_channels = 4,
       .padding_height = 1,
       .padding_width = 2},
      {.batch = 1,
       .in_height = 40,
       .in_width = 41,
       .in_channels = 1,
       .out_channels = 3,
       .kernel_height = 7,
       .kernel_width = 6,
       .padding_height = 3,
       .padding_width = 4},
  };
}

class Conv2dCase {
 public:
  Conv2dCase(Device* device, const Conv2dSpec& spec, const std::vector<float>& x, const std::vector<float>& weight,
             const std::vector<float>& bias, const std::vector<float>& dy)
      : device_(device), spec_(spec), x_(x), weight_(weight), bias_(bias), dy_(dy) {}

  struct Results {
    std::vector<float> y, dx, dweight, dbias;
    friend bool operator==(const Results&, const Results&) = default;
  };

  Results Run(int offset_lines = 0) {
    auto created = device_->CreateConv2d(spec_);
    EXPECT_TRUE(created.ok()) << created.status();
    if (!created.ok()) return {};
    Conv2d& conv = **created;
    const bool has_bias = spec_.bias == Bias::kAdded;
    const bool needs_dx = spec_.input_gradient == InputGradient::kNeeded;
    DeviceTensor x(device_, x_, offset_lines), weight(device_, weight_), bias(device_, bias_, offset_lines);
    DeviceTensor y(device_, static_cast<int64_t>(dy_.size()), 2 * offset_lines), dy(device_, dy_);
    DeviceTensor dx(device_, static_cast<int64_t>(x_.size()), offset_lines);
    DeviceTensor dweight(device_, static_cast<int64_t>(weight_.size()), offset_lines);
    DeviceTensor dbias(device_, spec_.out_channels);
    conv.Forward(x.data(), weight.data(), has_bias ? bias.data() : nullptr, y.data());
    conv.Backward(x.data(), weight.data(), y.data(), dy.data(), needs_dx ? dx.data() : nullptr, dweight.data(),
                  has_bias ? dbias.data() : nullptr);
    Results results = {y.Host(), {}, dweight.Host(), {}};
    if (needs_dx) results.dx = dx.Host();
    if (has_bias) results.dbias = dbias.Host();
    return results;
  }

  void CheckAgainstReference() {
    const Results got = Run();
    if (got.y.empty()) return;
    const Values x = ToDouble(x_), weight = ToDouble(weight_), dy = ToDouble(dy_);
    const Values bias = spec_.bias == Bias::kAdded ? ToDouble(bias_) : Values();
    EXPECT_TRUE(Near(got.y, reference::Conv2d(spec_, x, weight, bias))) << "y";
    const auto want = reference::Conv2dBackward(spec_, x, weight, ToDouble(got.y), dy);
    EXPECT_TRUE(Near(got.dweight, want.dweight)) << "dweight";
    if (!got.dbias.empty()) {
      EXPECT_TRUE(Near(got.dbias, want.dbias)) << "dbias";
    }
    if (!got.dx.empty()) {
      EXPECT_TRUE(Near(got.dx, want.dx)) << "dx";
    }
  }

  // Against finite differences of the sum of y * dy, at some elements of each tensor.
  void CheckAgainstFiniteDifferences() {
    const Results got = Run();
    if (got.y.empty()) return;
    const Values x = ToDouble(x_), weight = ToDouble(weight_);
    const Values bias = spec_.bias == Bias::kAdded ? ToDouble(bias_) : Values();
    const Values dy = ThroughActivation(spec_.activation, got.y, dy_);
    Conv2dSpec linear = spec_;
    linear.activation = Activation::kNone;
    const auto check = [&](const std::vector<float>& gradient, const Values& at, const char* name,
                           const std::function<double(const Values&)>& loss) {
      if (gradient.empty()) return;
      for (const int64_t i : SampleOf(static_cast<int64_t>(at.size()))) {
        const double want = reference::FiniteDifference(loss, at, i);
        EXPECT_NEAR(gradient[i], want, 1e-4 * std::max(1.0, std::abs(want))) << name << "[" << i << "]";
      }
    };
    check(got.dx, x, "dx",
          [&](const Values& v) { return reference::Dot(reference::Conv2d(linear, v, weight, bias), dy); });
    check(got.dweight, weight, "dweight",
          [&](const Values& v) { return reference::Dot(reference::Conv2d(linear, x, v, bias), dy); });
    check(got.dbias, bias, "dbias",
          [&](const Values& v) { return reference::Dot(reference::Conv2d(linear, x, weight, v), dy); });
  }

 private:
  Device* const device_;
  const Conv2dSpec spec_;
  const std::vector<float> x_, weight_, bias_, dy_;
};

Conv2dCase MakeCase(DeviceTest* test, const Conv2dSpec& s) {
  return {test->device(),
          s,
          test->Random(s.batch * s.in_height * s.in_width * s.in_channels),
          test->Random(s.out_channels * s.kernel_height * s.kernel_width * s.in_channels),
          test->Random(s.out_channels),
          test->Random(s.batch * s.out_height() * s.out_width() * s.out_channels)};
}

// Every shape with every option.
void ForEachSpec(const std::function<void(const Conv2dSpec&)>& visit) {
  for (Conv2dSpec spec : Shapes()) {
    for (const Bias bias : {Bias::kNone, Bias::kAdded}) {
      for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
        for (const InputGradient input_gradient : {InputGradient::kNotNeeded, InputGradient::kNeeded}) {
          spec.bias = bias;
          spec.activation = activation;
          spec.input_gradient = input_gradient;
          SCOPED_TRACE(Describe(spec));
          visit(spec);
        }
      }
    }
  }
}

TEST_P(DeviceTest, Conv2dMatchesTheReference) {
  ForEachSpec([this](const Conv2dSpec& spec) { MakeCase(this, spec).CheckAgainstReference(); });
}

TEST_P(DeviceTest, Conv2dGradientsMatchFiniteDifferences) {
  for (Conv2dSpec spec : Shapes()) {
    for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
      spec.activation = activation;
      SCOPED_TRACE(Describe(spec));
      MakeCase(this, spec).CheckAgainstFiniteDifferences();
    }
  }
}

TEST_P(DeviceTest, Conv2dGivesTheSameBitsOnEveryRunAndAtEveryAddress) {
  for (Conv2dSpec spec : Shapes()) {
    spec.activation = Activation::kRelu;
    SCOPED_TRACE(Describe(spec));
    Conv2dCase test = MakeCase(this, spec);
    const auto first = test.Run();
    EXPECT_TRUE(first == test.Run());
    EXPECT_TRUE(first == test.Run(1));
    EXPECT_TRUE(first == test.Run(3));
  }
}

// Network creates the operations of a training batch and of a shorter evaluation batch on one device, and runs them in
// turn: they share temporary memory.
TEST_P(DeviceTest, Conv2dOperationsOfOneDeviceDoNotDisturbEachOther) {
  Conv2dSpec spec = Shapes()[6];
  Conv2dCase small = MakeCase(this, spec);
  const auto alone = small.Run();
  spec.batch = 9;
  Conv2dCase large = MakeCase(this, spec);
  large.CheckAgainstReference();
  EXPECT_TRUE(alone == small.Run());
}

TEST_P(DeviceTest, Conv2dRefusesShapesThatMakeNoSense) {
  const Conv2dSpec good = {.batch = 2,
                           .in_height = 5,
                           .in_width = 6,
                           .in_channels = 3,
                           .out_channels = 4,
                           .kernel_height = 3,
                           .kernel_width = 3};
  EXPECT_TRUE(device()->CreateConv2d(good).ok());
  const auto refuses = [&](void (*change)(Conv2dSpec&), std::initializer_list<const char*> words) {
    Conv2dSpec spec = good;
    change(spec);
    const absl::Status status = device()->CreateConv2d(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << Describe(spec);
    for (const char* word : words) EXPECT_THAT(std::string(status.message()), testing::HasSubstr(word));
  };
  refuses([](Conv2dSpec& s) { s.batch = 0; }, {"batch", "0"});
  refuses([](Conv2dSpec& s) { s.in_height = -1; }, {"in_height", "-1"});
  refuses([](Conv2dSpec& s) { s.in_width = 0; }, {"in_width", "0"});
  refuses([](Conv2dSpec& s) { s.in_channels = 0; }, {"in_channels", "0"});
  refuses([](Conv2dSpec& s) { s.out_channels = -3; }, {"out_channels", "-3"});
  refuses([](Conv2dSpec& s) { s.kernel_height = 0; }, {"kernel_height", "0"});
  refuses([](Conv2dSpec& s) { s.kernel_width = -2; }, {"kernel_width", "-2"});
  refuses([](Conv2dSpec& s) { s.stride_height = 0; }, {"stride_height", "0"});
  refuses([](Conv2dSpec& s) { s.stride_width = 0; }, {"stride_width", "0"});
  refuses([](Conv2dSpec& s) { s.padding_height = -1; }, {"padding_height", "-1"});
  refuses([](Conv2dSpec& s) { s.padding_width = -7; }, {"padding_width", "-7"});
  refuses([](Conv2dSpec& s) { s.kernel_height = 6; }, {"kernel_height", "6", "5"});
  refuses([](Conv2dSpec& s) { s.kernel_width = 7; }, {"kernel_width", "7", "6"});
  refuses([](Conv2dSpec& s) { s.batch = int64_t{1} << 40; }, {"1099511627776"});
  refuses([](Conv2dSpec& s) { s.out_channels = int64_t{1} << 62; }, {"4611686018427387904"});
}

}  // namespace
}  // namespace starring
