// Operations without a suite of their own: values against the reference, gradients against the reference and finite
// differences, and equal bits in every run, at other addresses, and where they are promised on every device.
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

using reference::Values;

struct OperationCase {
  std::string name;
  OperationSpec spec;
  // FNV-1a over the bits of y, then of dx; 0 where devices need not agree. A test that fails prints the number.
  uint64_t bits = 0;
  double tolerance = 1e-6;
  bool works_in_place = false;  // y in place of x, and dx in place of dy
};

enum class Place { kOwn, kInPlace };

void AddActivations(std::vector<OperationCase>* cases) {
  struct Named {
    const char* name;
    ActivationFunction function;
    uint64_t bits;
    float parameter = 0;
  };
  for (const Named& f : {Named{"relu6", ActivationFunction::kRelu6, 13096591350423757013u},
                         Named{"sigmoid", ActivationFunction::kSigmoid, 14694092026836183366u},
                         Named{"tanh", ActivationFunction::kTanh, 12207148261305118690u},
                         Named{"gelu", ActivationFunction::kGelu, 2582337710297561329u},
                         Named{"gelu_tanh", ActivationFunction::kGeluTanh, 11135949555876441556u},
                         Named{"silu", ActivationFunction::kSilu, 9145725852843061652u},
                         Named{"leaky_relu", ActivationFunction::kLeakyRelu, 11130236984916261909u, 0.2f},
                         Named{"scale", ActivationFunction::kScale, 7695649754275244132u, -1.5f}}) {
    // A share of a thread ends in the middle of a vector, and elements are left over.
    for (const int64_t elements : {1, 4099}) {
      cases->push_back(
          {.name = absl::StrCat(f.name, " of ", elements),
           .spec =
               ActivationSpec{
                   .batch = 3, .sample_elements = elements, .function = f.function, .parameter = f.parameter},
           .bits = elements == 1 ? 0 : f.bits,
           .tolerance = 4e-6,
           .works_in_place = !BackwardReadsInput(f.function)});
    }
  }
}

void AddWindows(std::vector<OperationCase>* cases) {
  struct Named {
    const char* name;
    Pool2dSpec window;
    uint64_t average_bits, depthwise_bits;
  };
  // Whole blocks of channels and a rest; windows that overlap, leave gaps, are not square, are all padding at the edge.
  // In the order of the fields: batch, image, channels; kernel, stride and padding, height before width.
  const std::vector<Named> windows = {
      {"one", {1, 1, 1, 1, 1, 1, 2, 2, 0, 0}, 0, 0},
      {"3x3", {3, 7, 6, 21, 3, 3, 1, 1, 1, 1}, 3701092200532862159u, 6972760602497905734u},
      {"3x3 by 2", {2, 8, 9, 36, 3, 3, 2, 2, 1, 1}, 14506984756259552119u, 4700542441136232189u},
      {"1x2 with gaps", {9, 6, 11, 5, 1, 2, 2, 3, 0, 1}, 11387322925747392714u, 9520323879557404882u},
      {"5x4 of a small image", {2, 3, 2, 4, 5, 4, 1, 1, 3, 4}, 15783912248449801291u, 9103110148116342191u},
      {"many outputs", {40, 9, 9, 3, 2, 2, 1, 1, 0, 0}, 17542625830112722784u, 1906428810729992648u}};
  for (const Named& w : windows) {
    cases->push_back(
        {.name = absl::StrCat("average pool ", w.name), .spec = AveragePool2dSpec{w.window}, .bits = w.average_bits});
    cases->push_back({.name = absl::StrCat("depthwise conv2d ", w.name),
                      .spec = DepthwiseConv2dSpec{w.window},
                      .bits = w.depthwise_bits});
  }
  cases->push_back(
      {.name = "depthwise conv2d without bias", .spec = DepthwiseConv2dSpec{windows[1].window, Bias::kNone}});
}

std::vector<OperationCase> Cases() {
  std::vector<OperationCase> cases;
  for (const GlobalAveragePoolSpec& spec :
       std::vector<GlobalAveragePoolSpec>{{.batch = 1, .height = 1, .width = 1, .channels = 1},
                                          {.batch = 63, .height = 8, .width = 8, .channels = 64},
                                          {.batch = 2, .height = 3, .width = 5, .channels = 17},
                                          {.batch = 3, .height = 3, .width = 5, .channels = 12},
                                          {.batch = 1, .height = 1, .width = 2, .channels = 4},
                                          {.batch = 5, .height = 1, .width = 7, .channels = 3}}) {
    cases.push_back({absl::StrCat("global average pool ", spec.height, "x", spec.width, "x", spec.channels), spec});
  }
  AddActivations(&cases);
  AddWindows(&cases);
  // Groups of one channel, of all, and between; more rows than a tile; whole vectors and a rest.
  for (const GroupNormSpec& spec :
       std::vector<GroupNormSpec>{{.batch = 3, .pixels = 35, .channels = 12, .groups = 3},
                                  {.batch = 2, .pixels = 64, .channels = 40, .groups = 40},
                                  {.batch = 5, .pixels = 1, .channels = 301, .groups = 1, .epsilon = 0.1f},
                                  {.batch = 60, .pixels = 9, .channels = 6, .groups = 2},
                                  {.batch = 70, .pixels = 3, .channels = 4, .groups = 1}}) {
    cases.push_back({.name = absl::StrCat("group norm of ", spec.pixels, "x", spec.channels, " by ", spec.groups),
                     .spec = spec,
                     .tolerance = 5e-6});
  }
  return cases;
}

struct Results {
  std::vector<float> y, dx, dweight, dbias;
  friend bool operator==(const Results&, const Results&) = default;
};

// One case with its random numbers.
class OperationRun {
 public:
  OperationRun(DeviceTest* test, const OperationSpec& spec) : spec_(spec), sizes_(reference::SizesOf(spec)) {
    x_ = test->Random(sizes_.x);
    // Activations bend beyond 1.
    for (float& value : x_) value *= 8;
    weight_ = test->Random(sizes_.weight);
    bias_ = test->Random(sizes_.bias);
    dy_ = test->Random(sizes_.y);
  }

  Results On(Device* device, int offset_lines = 0, Place place = Place::kOwn) const {
    auto operation = device->CreateOperation(spec_);
    EXPECT_TRUE(operation.ok()) << operation.status();
    if (!operation.ok()) return {};
    DeviceTensor x(device, x_, offset_lines), y(device, sizes_.y, offset_lines), dy(device, dy_, offset_lines);
    DeviceTensor dx(device, sizes_.x, offset_lines), weight(device, weight_), dweight(device, sizes_.weight);
    DeviceTensor bias(device, bias_), dbias(device, sizes_.bias);
    const auto given = [](DeviceTensor& tensor, int64_t count) { return count > 0 ? tensor.data() : nullptr; };
    DeviceTensor& out = place == Place::kOwn ? y : x;
    DeviceTensor& gradient = place == Place::kOwn ? dx : dy;
    (*operation)->Forward(x.data(), given(weight, sizes_.weight), given(bias, sizes_.bias), out.data());
    (*operation)
        ->Backward(x.data(), given(weight, sizes_.weight), out.data(), dy.data(), gradient.data(),
                   given(dweight, sizes_.weight), given(dbias, sizes_.bias));
    return {out.Host(), gradient.Host(), dweight.Host(), dbias.Host()};
  }

  Values Forward() const { return Forward(ToDouble(x_), ToDouble(weight_), ToDouble(bias_)); }
  reference::Gradients Backward() const {
    return reference::Backward(spec_, ToDouble(x_), ToDouble(weight_), Forward(), ToDouble(dy_));
  }

  // The gradients of x, weight and bias by central differences, at a few places, beside `got`.
  void ExpectDifferences(const Results& got, double tolerance) const {
    const Values x = ToDouble(x_), weight = ToDouble(weight_), bias = ToDouble(bias_), dy = ToDouble(dy_);
    const auto loss = [&](const Values& y) { return reference::Dot(y, dy); };
    const auto expect = [&](const char* what, const Values& at, const std::vector<float>& gradient, auto forward) {
      if (at.empty()) return;
      for (const int64_t i : SampleOf(std::ssize(at))) {
        const auto at_value = [&](const Values& v) { return loss(forward(v)); };
        EXPECT_NEAR(gradient[i], reference::FiniteDifference(at_value, at, i), tolerance) << what << "[" << i << "]";
      }
    };
    expect("dx", x, got.dx, [&](const Values& v) { return Forward(v, weight, bias); });
    expect("dweight", weight, got.dweight, [&](const Values& v) { return Forward(x, v, bias); });
    expect("dbias", bias, got.dbias, [&](const Values& v) { return Forward(x, weight, v); });
  }

 private:
  Values Forward(const Values& x, const Values& weight, const Values& bias) const {
    return reference::Forward(spec_, x, weight, bias);
  }

  const OperationSpec spec_;
  const reference::Sizes sizes_;
  std::vector<float> x_, weight_, bias_, dy_;
};

uint64_t BitsOf(const Results& results) {
  uint64_t hash = 14695981039346656037u;
  for (const std::vector<float>* values : {&results.y, &results.dx}) {
    for (const float value : *values) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 1099511628211u;
  }
  return hash;
}

TEST_P(DeviceTest, OperationsMatchTheReference) {
  for (const OperationCase& c : Tested(Cases())) {
    SCOPED_TRACE(c.name);
    const OperationRun run(this, c.spec);
    const Results got = run.On(device());
    const reference::Gradients gradients = run.Backward();
    EXPECT_TRUE(Near(got.y, run.Forward(), c.tolerance));
    EXPECT_TRUE(Near(got.dx, gradients.dx, c.tolerance));
    EXPECT_TRUE(Near(got.dweight, gradients.dweight));
    EXPECT_TRUE(Near(got.dbias, gradients.dbias));
    EXPECT_TRUE(got == run.On(device(), 3)) << "at another address";
    if (c.works_in_place) {
      EXPECT_TRUE(got == run.On(device(), 0, Place::kInPlace)) << "in place";
    }
  }
}

TEST_P(DeviceTest, OperationsGradientsMatchFiniteDifferences) {
  for (const OperationCase& c : Tested(Cases())) {
    SCOPED_TRACE(c.name);
    const OperationRun run(this, c.spec);
    run.ExpectDifferences(run.On(device()), 2e-4);
  }
}

TEST_P(DeviceTest, OperationsRefuseShapesThatMakeNoSense) {
  for (const OperationCase& c : Cases()) {
    SCOPED_TRACE(c.name);
    OperationSpec spec = c.spec;
    std::visit([](auto& s) { s.batch = 0; }, spec);
    const absl::Status status = device()->CreateOperation(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("batch is 0"));
  }
}

TEST_P(DeviceTest, ActivationsOfExtremesAreFiniteAndNanStaysNan) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> extremes = {nan, -infinity, infinity, -3e38f, 3e38f, -200, 200, -90, 90, -15, 15, 1e-30f};
  for (const ActivationFunction function :
       {ActivationFunction::kRelu6, ActivationFunction::kSigmoid, ActivationFunction::kTanh}) {
    const auto count = std::ssize(extremes);
    auto operation =
        device()->CreateOperation(ActivationSpec{.batch = 1, .sample_elements = count, .function = function}).value();
    DeviceTensor x(device(), extremes), y(device(), count);
    operation->Forward(x.data(), nullptr, nullptr, y.data());
    const std::vector<float> got = y.Host();
    EXPECT_THAT(got[0], testing::IsNan());
    const bool is_tanh = function == ActivationFunction::kTanh;
    const float highest = function == ActivationFunction::kRelu6 ? 6 : 1;
    for (const size_t i : {2, 4, 6, 8, 10}) EXPECT_NEAR(got[i], highest, 1e-6) << extremes[i];
    for (const size_t i : {1, 3, 5, 7, 9}) EXPECT_NEAR(got[i], is_tanh ? -1 : 0, 1e-6) << extremes[i];
  }
  for (const ActivationFunction function : {ActivationFunction::kGelu, ActivationFunction::kGeluTanh,
                                            ActivationFunction::kSilu, ActivationFunction::kLeakyRelu}) {
    auto operation =
        device()->CreateOperation(ActivationSpec{.batch = 1, .sample_elements = 4, .function = function}).value();
    DeviceTensor x(device(), {nan, infinity, 200, -200}), y(device(), 4);
    operation->Forward(x.data(), nullptr, nullptr, y.data());
    EXPECT_THAT(y.Host(), testing::ElementsAre(testing::IsNan(), infinity, 200, testing::FloatNear(0, 1e-6f)));
  }
}

// Activations that are x far above 0, and 0 far below.
TEST_P(DeviceTest, ValuesAndSlopesFarFrom0AreTheLimits) {
  const std::vector<float> far = {200, 1e13f, 1e25f, 3e38f, -200, -1e13f, -1e25f, -3e38f};
  const auto count = std::ssize(far);
  for (const ActivationFunction function : {ActivationFunction::kGelu, ActivationFunction::kGeluTanh,
                                            ActivationFunction::kSilu, ActivationFunction::kLeakyRelu}) {
    SCOPED_TRACE(static_cast<int>(function));
    auto operation =
        device()->CreateOperation(ActivationSpec{.batch = 1, .sample_elements = count, .function = function}).value();
    DeviceTensor x(device(), far), y(device(), count), dx(device(), count);
    DeviceTensor dy(device(), std::vector<float>(far.size(), 1));
    operation->Forward(x.data(), nullptr, nullptr, y.data());
    operation->Backward(x.data(), nullptr, y.data(), dy.data(), dx.data(), nullptr, nullptr);
    const std::vector<float> values = y.Host(), slopes = dx.Host();
    for (size_t i = 0; i < far.size(); ++i) {
      EXPECT_EQ(values[i], far[i] > 0 ? far[i] : 0) << far[i];
      EXPECT_EQ(slopes[i], far[i] > 0 ? 1 : 0) << far[i];
    }
  }
}

// A float sum of so many values has too few digits.
TEST_P(DeviceTest, GroupNormOfManyPixelsFarFrom0KeepsItsDigits) {
  const GroupNormSpec spec = {.batch = 2, .pixels = 128 * 128, .channels = 3, .groups = 3};
  const int64_t image = spec.pixels * spec.channels;
  // The first image is constant, so that its variance is all error.
  std::vector<float> x_host = Random(2 * image);
  for (int64_t i = 0; i < 2 * image; ++i) x_host[i] = i < image ? 17.3f : 17 + 0.01f * x_host[i];
  const std::vector<float> gamma_host = Random(3), beta_host = Random(3), dy_host(x_host.size(), 0.1f);
  auto norm = device()->CreateOperation(spec).value();
  DeviceTensor x(device(), x_host), y(device(), 2 * image), dy(device(), dy_host), dx(device(), 2 * image);
  DeviceTensor gamma(device(), gamma_host), beta(device(), beta_host), dgamma(device(), 3), dbeta(device(), 3);
  norm->Forward(x.data(), gamma.data(), beta.data(), y.data());
  const Values want = reference::Forward(spec, ToDouble(x_host), ToDouble(gamma_host), ToDouble(beta_host));
  EXPECT_TRUE(Near(y.Host(), want, 5e-4));
  norm->Backward(x.data(), gamma.data(), y.data(), dy.data(), dx.data(), dgamma.data(), dbeta.data());
  EXPECT_TRUE(Near(dbeta.Host(), Values(3, 0.1 * 2 * 128 * 128), 2e-6));
}

TEST_P(DeviceTest, GradientsOfADepthwiseConvolutionWithManyOutputsKeepTheirDigits) {
  const DepthwiseConv2dSpec spec = {{.batch = 6,
                                     .in_height = 96,
                                     .in_width = 64,
                                     .channels = 17,
                                     .kernel_height = 1,
                                     .kernel_width = 1,
                                     .stride_height = 1,
                                     .stride_width = 1}};
  const int64_t count = 6 * 96 * 64 * 17;
  auto conv = device()->CreateOperation(spec).value();
  DeviceTensor x(device(), std::vector<float>(count, 1)), y(device(), count);
  DeviceTensor dy(device(), std::vector<float>(count, 0.1f)), dx(device(), count);
  DeviceTensor weight(device(), Random(17)), dweight(device(), 17), dbias(device(), 17);
  conv->Backward(x.data(), weight.data(), y.data(), dy.data(), dx.data(), dweight.data(), dbias.data());
  EXPECT_TRUE(Near(dweight.Host(), Values(17, 0.1 * 6 * 96 * 64), 1e-5));
  EXPECT_TRUE(Near(dbias.Host(), Values(17, 0.1 * 6 * 96 * 64), 1e-5));
}

TEST_P(DeviceTest, PartsOfAConcatAreCopies) {
  struct Channels {
    int64_t first, second;
  };
  for (const Channels c : {Channels{1, 1}, Channels{3, 5}, Channels{4, 8}, Channels{4, 3}}) {
    SCOPED_TRACE(absl::StrCat(c.first, " and ", c.second, " channels"));
    const ConcatPartSpec first = {.batch = 3, .pixels = 35, .channels = c.first, .out_channels = c.first + c.second};
    const ConcatPartSpec second = {
        .batch = 3, .pixels = 35, .channels = c.second, .out_channels = c.first + c.second, .offset = c.first};
    auto a = device()->CreateOperation(first).value(), b = device()->CreateOperation(second).value();
    const int64_t pixels = 3 * 35;
    const std::vector<float> x_host = Random(pixels * c.first), x2_host = Random(pixels * c.second);
    DeviceTensor x(device(), x_host), x2(device(), x2_host), y(device(), pixels * first.out_channels);
    b->Forward(x2.data(), nullptr, nullptr, y.data());
    a->Forward(x.data(), nullptr, nullptr, y.data());
    std::vector<float> want;
    for (int64_t p = 0; p < pixels; ++p) {
      want.insert(want.end(), x_host.begin() + p * c.first, x_host.begin() + (p + 1) * c.first);
      want.insert(want.end(), x2_host.begin() + p * c.second, x2_host.begin() + (p + 1) * c.second);
    }
    EXPECT_EQ(y.Host(), want);
    DeviceTensor dx(device(), pixels * c.first), dx2(device(), pixels * c.second);
    a->Backward(nullptr, nullptr, nullptr, y.data(), dx.data(), nullptr, nullptr);
    b->Backward(nullptr, nullptr, nullptr, y.data(), dx2.data(), nullptr, nullptr);
    EXPECT_EQ(dx.Host(), x_host);
    EXPECT_EQ(dx2.Host(), x2_host);
  }
  const absl::Status status =
      device()
          ->CreateOperation(ConcatPartSpec{.batch = 1, .pixels = 1, .channels = 3, .out_channels = 4, .offset = 2})
          .status();
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("channels 2 to 5 of an output with 4"));
}

TEST_P(DeviceTest, OperationsHaveTheirBits) {
  for (const OperationCase& c : Cases()) {
    // Every case draws its numbers, so that those of the next one do not depend on `bits`.
    const OperationRun run(this, c.spec);
    if (c.bits != 0) {
      EXPECT_EQ(BitsOf(run.On(device())), c.bits) << c.name;
    }
  }
}

}  // namespace
}  // namespace starring
