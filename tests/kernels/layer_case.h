// A layer with weights (Conv2d, Dense) in one shape, with random values, run on a device and checked.
//
// Kind is the layer's kind. It has Spec, Create(device, spec), and the reference's Forward(spec, x, weight, bias) and
// Backward(spec, x, weight, y, dy).
#ifndef STARRING_TESTS_KERNELS_LAYER_CASE_H_
#define STARRING_TESTS_KERNELS_LAYER_CASE_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {

struct LayerValues {
  std::vector<float> x, weight, bias, dy;
};

struct LayerResults {
  std::vector<float> y, dx, dweight, dbias;
  friend bool operator==(const LayerResults&, const LayerResults&) = default;
};

template <typename Kind>
class LayerCase {
 public:
  using Spec = typename Kind::Spec;
  using Values = reference::Values;

  // `tolerance_factor`: as DeviceMaker's.
  LayerCase(Device* device, const Spec& spec, const LayerValues& values, double tolerance_factor)
      : device_(device), spec_(spec), values_(values), tolerance_factor_(tolerance_factor) {}

  // dx and dbias are empty where the spec says that there are none; everything is empty after a failure.
  LayerResults Run(int offset_lines = 0) const {
    auto created = Kind::Create(device_, spec_);
    EXPECT_TRUE(created.ok()) << created.status();
    if (!created.ok()) return {};
    auto& layer = **created;
    const bool has_bias = spec_.bias == Bias::kAdded;
    const bool needs_dx = spec_.input_gradient == InputGradient::kNeeded;
    DeviceTensor x(device_, values_.x, offset_lines), weight(device_, values_.weight);
    DeviceTensor bias(device_, values_.bias, offset_lines), dbias(device_, std::ssize(values_.bias));
    DeviceTensor y(device_, std::ssize(values_.dy), 2 * offset_lines), dy(device_, values_.dy);
    DeviceTensor dx(device_, std::ssize(values_.x), offset_lines);
    DeviceTensor dweight(device_, std::ssize(values_.weight), offset_lines);
    layer.Forward(x.data(), weight.data(), has_bias ? bias.data() : nullptr, y.data());
    layer.Backward(x.data(), weight.data(), y.data(), dy.data(), needs_dx ? dx.data() : nullptr, dweight.data(),
                   has_bias ? dbias.data() : nullptr);
    LayerResults results = {y.Host(), {}, dweight.Host(), {}};
    if (needs_dx) results.dx = dx.Host();
    if (has_bias) results.dbias = dbias.Host();
    return results;
  }

  void CheckAgainstReference() const {
    const LayerResults got = Run();
    if (got.y.empty()) return;
    const double tolerance = tolerance_factor_ * kTolerance;
    const Values x = ToDouble(values_.x), weight = ToDouble(values_.weight);
    EXPECT_TRUE(Near(got.y, Kind::Forward(spec_, x, weight, BiasValues()), tolerance)) << "y";
    const auto want = Kind::Backward(spec_, x, weight, ToDouble(got.y), ToDouble(values_.dy));
    EXPECT_TRUE(Near(got.dweight, want.dweight, tolerance)) << "dweight";
    if (!got.dbias.empty()) {
      EXPECT_TRUE(Near(got.dbias, want.dbias, tolerance)) << "dbias";
    }
    if (!got.dx.empty()) {
      EXPECT_TRUE(Near(got.dx, want.dx, tolerance)) << "dx";
    }
  }

  // Against finite differences of the sum of y * dy, at some elements of each tensor.
  void CheckAgainstFiniteDifferences() const {
    const LayerResults got = Run();
    if (got.y.empty()) return;
    const Values x = ToDouble(values_.x), weight = ToDouble(values_.weight), bias = BiasValues();
    const Values dy = ThroughActivation(spec_.activation, got.y, values_.dy);
    Spec linear = spec_;
    linear.activation = Activation::kNone;
    const auto check = [&](const std::vector<float>& gradient, const Values& at, const char* name,
                           const std::function<Values(const Values&)>& y) {
      if (gradient.empty()) return;
      const auto loss = [&](const Values& v) { return reference::Dot(y(v), dy); };
      for (const int64_t i : SampleOf(std::ssize(at))) {
        const double want = reference::FiniteDifference(loss, at, i);
        EXPECT_NEAR(gradient[i], want, tolerance_factor_ * 1e-4 * std::max(1.0, std::abs(want)))
            << name << "[" << i << "]";
      }
    };
    check(got.dx, x, "dx", [&](const Values& v) { return Kind::Forward(linear, v, weight, bias); });
    check(got.dweight, weight, "dweight", [&](const Values& v) { return Kind::Forward(linear, x, v, bias); });
    check(got.dbias, bias, "dbias", [&](const Values& v) { return Kind::Forward(linear, x, weight, v); });
  }

  void CheckBits() const {
    const LayerResults first = Run();
    EXPECT_TRUE(first == Run());
    EXPECT_TRUE(first == Run(1));
    EXPECT_TRUE(first == Run(3));
  }

 private:
  Values BiasValues() const { return spec_.bias == Bias::kAdded ? ToDouble(values_.bias) : Values(); }

  Device* const device_;
  const Spec spec_;
  const LayerValues values_;
  const double tolerance_factor_;
};

// Calls visit for every shape with every combination of options.
template <typename Spec>
void ForEachSpec(const std::vector<Spec>& shapes, const std::function<void(const Spec&)>& visit) {
  for (Spec spec : shapes) {
    for (const Bias bias : {Bias::kNone, Bias::kAdded}) {
      for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
        for (const InputGradient input_gradient : {InputGradient::kNotNeeded, InputGradient::kNeeded}) {
          spec.bias = bias;
          spec.activation = activation;
          spec.input_gradient = input_gradient;
          visit(spec);
        }
      }
    }
  }
}

}  // namespace starring

#endif  // STARRING_TESTS_KERNELS_LAYER_CASE_H_
