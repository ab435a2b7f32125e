#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

using reference::Values;

std::string Describe(const DenseSpec& s) {
  return absl::StrCat("batch ", s.batch, ", in ", s.in, ", out ", s.out, s.bias == Bias::kNone ? ", no bias" : "",
                      s.activation == Activation::kRelu ? ", relu" : "",
                      s.input_gradient == InputGradient::kNotNeeded ? ", no dx" : "");
}

std::vector<DenseSpec> Shapes() {
  return {
      {.batch = 1, .in = 1, .out = 1},      {.batch = 64, .in = 784, .out = 31}, {.batch = 63, .in = 120, .out = 84},
      {.batch = 64, .in = 84, .out = 10},   {.batch = 1, .in = 37, .out = 129},  {.batch = 17, .in = 1, .out = 16},
      {.batch = 65, .in = 33, .out = 17},   {.batch = 16, .in = 16, .out = 1},   {.batch = 128, .in = 65, .out = 48},
      {.batch = 5, .in = 1031, .out = 3},   {.batch = 48, .in = 100, .out = 67}, {.batch = 2, .in = 3, .out = 1024},
      {.batch = 33, .in = 515, .out = 130}, {.batch = 200, .in = 19, .out = 23}, {.batch = 64, .in = 64, .out = 64},
  };
}

class DenseCase {
 public:
  DenseCase(DeviceTest* test, const DenseSpec& s)
      : device_(test->device()),
        spec_(s),
        x_(test->Random(s.batch * s.in)),
        weight_(test->Random(s.out * s.in)),
        bias_(test->Random(s.out)),
        dy_(test->Random(s.batch * s.out)) {}

  struct Results {
    std::vector<float> y, dx, dweight, dbias;
    friend bool operator==(const Results&, const Results&) = default;
  };

  Results Run(int offset_lines = 0) {
    auto created = device_->CreateDense(spec_);
    EXPECT_TRUE(created.ok()) << created.status();
    if (!created.ok()) return {};
    Dense& dense = **created;
    const bool has_bias = spec_.bias == Bias::kAdded;
    const bool needs_dx = spec_.input_gradient == InputGradient::kNeeded;
    DeviceTensor x(device_, x_, offset_lines), weight(device_, weight_), bias(device_, bias_, offset_lines);
    DeviceTensor y(device_, static_cast<int64_t>(dy_.size()), 2 * offset_lines), dy(device_, dy_);
    DeviceTensor dx(device_, static_cast<int64_t>(x_.size()), offset_lines);
    DeviceTensor dweight(device_, static_cast<int64_t>(weight_.size()), offset_lines);
    DeviceTensor dbias(device_, spec_.out);
    dense.Forward(x.data(), weight.data(), has_bias ? bias.data() : nullptr, y.data());
    dense.Backward(x.data(), weight.data(), y.data(), dy.data(), needs_dx ? dx.data() : nullptr, dweight.data(),
                   has_bias ? dbias.data() : nullptr);
    Results results = {y.Host(), {}, dweight.Host(), {}};
    if (needs_dx) results.dx = dx.Host();
    if (has_bias) results.dbias = dbias.Host();
    return results;
  }

  void CheckAgainstReference() {
    const Results got = Run();
    if (got.y.empty()) return;
    const Values x = ToDouble(x_), weight = ToDouble(weight_);
    const Values bias = spec_.bias == Bias::kAdded ? ToDouble(bias_) : Values();
    EXPECT_TRUE(Near(got.y, reference::Dense(spec_, x, weight, bias))) << "y";
    const auto want = reference::DenseBackward(spec_, x, weight, ToDouble(got.y), ToDouble(dy_));
    EXPECT_TRUE(Near(got.dweight, want.dweight)) << "dweight";
    if (!got.dbias.empty()) {
      EXPECT_TRUE(Near(got.dbias, want.dbias)) << "dbias";
    }
    if (!got.dx.empty()) {
      EXPECT_TRUE(Near(got.dx, want.dx)) << "dx";
    }
  }

  void CheckAgainstFiniteDifferences() {
    const Results got = Run();
    if (got.y.empty()) return;
    const Values x = ToDouble(x_), weight = ToDouble(weight_), bias = ToDouble(bias_);
    const Values dy = ThroughActivation(spec_.activation, got.y, dy_);
    DenseSpec linear = spec_;
    linear.activation = Activation::kNone;
    const auto check = [&](const std::vector<float>& gradient, const Values& at, const char* name,
                           const std::function<double(const Values&)>& loss) {
      for (const int64_t i : SampleOf(static_cast<int64_t>(at.size()))) {
        const double want = reference::FiniteDifference(loss, at, i);
        EXPECT_NEAR(gradient[i], want, 1e-4 * std::max(1.0, std::abs(want))) << name << "[" << i << "]";
      }
    };
    check(got.dx, x, "dx",
          [&](const Values& v) { return reference::Dot(reference::Dense(linear, v, weight, bias), dy); });
    check(got.dweight, weight, "dweight",
          [&](const Values& v) { return reference::Dot(reference::Dense(linear, x, v, bias), dy); });
    check(got.dbias, bias, "dbias",
          [&](const Values& v) { return reference::Dot(reference::Dense(linear, x, weight, v), dy); });
  }

 private:
  Device* const device_;
  const DenseSpec spec_;
  const std::vector<float> x_, weight_, bias_, dy_;
};

TEST_P(DeviceTest, DenseMatchesTheReference) {
  for (DenseSpec spec : Shapes()) {
    for (const Bias bias : {Bias::kNone, Bias::kAdded}) {
      for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
        for (const InputGradient input_gradient : {InputGradient::kNotNeeded, InputGradient::kNeeded}) {
          spec.bias = bias;
          spec.activation = activation;
          spec.input_gradient = input_gradient;
          SCOPED_TRACE(Describe(spec));
          DenseCase(this, spec).CheckAgainstReference();
        }
      }
    }
  }
}

TEST_P(DeviceTest, DenseGradientsMatchFiniteDifferences) {
  for (DenseSpec spec : Shapes()) {
    for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
      spec.activation = activation;
      SCOPED_TRACE(Describe(spec));
      DenseCase(this, spec).CheckAgainstFiniteDifferences();
    }
  }
}

TEST_P(DeviceTest, DenseGivesTheSameBitsOnEveryRunAndAtEveryAddress) {
  for (DenseSpec spec : Shapes()) {
    spec.activation = Activation::kRelu;
    SCOPED_TRACE(Describe(spec));
    DenseCase test(this, spec);
    const auto first = test.Run();
    EXPECT_TRUE(first == test.Run());
    EXPECT_TRUE(first == test.Run(1));
    EXPECT_TRUE(first == test.Run(3));
  }
}

TEST_P(DeviceTest, DenseRefusesShapesThatMakeNoSense) {
  const auto refuses = [&](const DenseSpec& spec, std::initializer_list<const char*> words) {
    const absl::Status status = device()->CreateDense(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << Describe(spec);
    for (const char* word : words) EXPECT_THAT(std::string(status.message()), testing::HasSubstr(word));
  };
  refuses({.batch = 0, .in = 1, .out = 1}, {"batch", "0"});
  refuses({.batch = 1, .in = -5, .out = 1}, {"in is -5"});
  refuses({.batch = 1, .in = 1, .out = 0}, {"out is 0"});
  refuses({.batch = 1, .in = 1 << 20, .out = 1 << 20}, {"1048576"});
}

}  // namespace
}  // namespace starring
