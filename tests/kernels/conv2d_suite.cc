#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"
#include "tests/kernels/layer_case.h"
#include "tests/kernels/square_conv2d.h"

namespace starring {
namespace {

std::string Describe(const Conv2dSpec& s) {
  return absl::StrCat("batch ", s.batch, ", in ", s.in_height, "x", s.in_width, "x", s.in_channels, ", out channels ",
                      s.out_channels, ", kernel ", s.kernel_height, "x", s.kernel_width, ", stride ", s.stride_height,
                      "x", s.stride_width, ", padding ", s.padding_height, "x", s.padding_width,
                      s.bias == Bias::kNone ? ", no bias" : "", s.activation == Activation::kRelu ? ", relu" : "",
                      s.input_gradient == InputGradient::kNotNeeded ? ", no dx" : "");
}

// Shapes of the shipped models, and odd ones: size 1, primes, strides, more padding than the kernel needs, not square.
std::vector<Conv2dSpec> Shapes() {
  return {
      SpecOf({.batch = 1, .side = 1, .in_channels = 1, .out_channels = 1}),
      {.batch = 3, .in_height = 5, .in_width = 7, .in_channels = 17, .out_channels = 5},
      SpecOf({.batch = 2, .side = 28, .in_channels = 1, .out_channels = 6, .kernel = 5, .padding = 2}),
      SpecOf({.batch = 3, .side = 14, .in_channels = 6, .out_channels = 16, .kernel = 5}),
      {.batch = 63,
       .in_height = 6,
       .in_width = 5,
       .in_channels = 3,
       .out_channels = 16,
       .kernel_height = 3,
       .kernel_width = 3,
       .padding_height = 1,
       .padding_width = 1},
      SpecOf({.batch = 2, .side = 28, .in_channels = 1, .out_channels = 32, .kernel = 3}),
      {.batch = 2,
       .in_height = 12,
       .in_width = 11,
       .in_channels = 32,
       .out_channels = 64,
       .kernel_height = 3,
       .kernel_width = 3},
      SpecOf({.batch = 1, .side = 8, .in_channels = 64, .out_channels = 64, .kernel = 3, .padding = 1}),
      SpecOf({.batch = 2, .side = 9, .in_channels = 16, .out_channels = 32, .kernel = 3, .stride = 2, .padding = 1}),
      SpecOf({.batch = 2, .side = 8, .in_channels = 16, .out_channels = 32, .stride = 2}),
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
      SpecOf({.batch = 4, .side = 4, .in_channels = 3, .out_channels = 7, .kernel = 4}),
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
      {.batch = 5,
       .in_height = 9,
       .in_width = 7,
       .in_channels = 4,
       .out_channels = 37,
       .kernel_height = 3,
       .kernel_width = 2,
       .stride_height = 3,
       .padding_height = 1,
       .padding_width = 1},
      {.batch = 1, .in_height = 300, .in_width = 112, .in_channels = 1, .out_channels = 11, .kernel_width = 3},
      {.batch = 3, .in_height = 5, .in_width = 6, .in_channels = 67, .out_channels = 4, .kernel_width = 2},
      {.batch = 3,
       .in_height = 5,
       .in_width = 6,
       .in_channels = 12,
       .out_channels = 68,
       .kernel_height = 3,
       .kernel_width = 3,
       .padding_height = 1,
       .padding_width = 1},
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

struct Conv2dKind {
  using Spec = Conv2dSpec;
  static auto Create(Device* device, const Conv2dSpec& spec) { return device->CreateOperation(spec); }
  static constexpr auto Forward = reference::Conv2d;
  static constexpr auto Backward = reference::Conv2dBackward;
};
using Conv2dCase = LayerCase<Conv2dKind>;

Conv2dCase MakeCase(DeviceTest* test, const Conv2dSpec& s) {
  return {test->device(),
          s,
          {.x = test->Random(s.batch * s.in_height * s.in_width * s.in_channels),
           .weight = test->Random(s.out_channels * s.kernel_height * s.kernel_width * s.in_channels),
           .bias = test->Random(s.out_channels),
           .dy = test->Random(s.batch * s.out_height() * s.out_width() * s.out_channels)},
          test->tolerance_factor()};
}

TEST_P(Conv2dTest, MatchesTheReference) {
  ForEachSpec<Conv2dSpec>(Tested(Shapes()), [this](const Conv2dSpec& spec) {
    SCOPED_TRACE(Describe(spec));
    MakeCase(this, spec).CheckAgainstReference();
  });
}

TEST_P(Conv2dTest, GradientsMatchFiniteDifferences) {
  for (Conv2dSpec spec : Tested(Shapes())) {
    for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
      spec.activation = activation;
      SCOPED_TRACE(Describe(spec));
      MakeCase(this, spec).CheckAgainstFiniteDifferences();
    }
  }
}

TEST_P(Conv2dTest, GivesTheSameBitsOnEveryRunAndAtEveryAddress) {
  for (Conv2dSpec spec : Tested(Shapes())) {
    spec.activation = Activation::kRelu;
    SCOPED_TRACE(Describe(spec));
    MakeCase(this, spec).CheckBits();
  }
}

// Network creates the operations of a training batch and of a shorter evaluation batch on one device, and runs them in
// turn. They share temporary memory.
TEST_P(Conv2dTest, OperationsOfOneDeviceDoNotDisturbEachOther) {
  Conv2dSpec spec = Shapes()[6];
  Conv2dCase small = MakeCase(this, spec);
  const auto alone = small.Run();
  spec.batch = 9;
  Conv2dCase large = MakeCase(this, spec);
  large.CheckAgainstReference();
  EXPECT_TRUE(alone == small.Run());
}

TEST_P(Conv2dTest, RefusesShapesThatMakeNoSense) {
  const Conv2dSpec good = {.batch = 2,
                           .in_height = 5,
                           .in_width = 6,
                           .in_channels = 3,
                           .out_channels = 4,
                           .kernel_height = 3,
                           .kernel_width = 3};
  EXPECT_TRUE(device()->CreateOperation(good).ok());
  const auto refuses = [&](void (*change)(Conv2dSpec&), std::initializer_list<const char*> words) {
    Conv2dSpec spec = good;
    change(spec);
    const absl::Status status = device()->CreateOperation(spec).status();
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
