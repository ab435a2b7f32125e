#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"
#include "tests/kernels/layer_case.h"

namespace starring {
namespace {

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
      {.batch = 300, .in = 5, .out = 36},
  };
}

struct DenseKind {
  using Spec = DenseSpec;
  static auto Create(Device* device, const DenseSpec& spec) { return device->CreateOperation(spec); }
  static constexpr auto Forward = reference::Dense;
  static constexpr auto Backward = reference::DenseBackward;
};

LayerCase<DenseKind> MakeCase(DeviceTest* test, const DenseSpec& s) {
  return {test->device(),
          s,
          {.x = test->Random(s.batch * s.in),
           .weight = test->Random(s.out * s.in),
           .bias = test->Random(s.out),
           .dy = test->Random(s.batch * s.out)},
          test->tolerance_factor()};
}

TEST_P(DeviceTest, DenseMatchesTheReference) {
  ForEachSpec<DenseSpec>(Tested(Shapes()), [this](const DenseSpec& spec) {
    SCOPED_TRACE(Describe(spec));
    MakeCase(this, spec).CheckAgainstReference();
  });
}

TEST_P(DeviceTest, DenseGradientsMatchFiniteDifferences) {
  for (DenseSpec spec : Tested(Shapes())) {
    for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
      spec.activation = activation;
      SCOPED_TRACE(Describe(spec));
      MakeCase(this, spec).CheckAgainstFiniteDifferences();
    }
  }
}

TEST_P(DeviceTest, DenseGivesTheSameBitsOnEveryRunAndAtEveryAddress) {
  for (DenseSpec spec : Tested(Shapes())) {
    spec.activation = Activation::kRelu;
    SCOPED_TRACE(Describe(spec));
    MakeCase(this, spec).CheckBits();
  }
}

TEST_P(DeviceTest, DenseRefusesShapesThatMakeNoSense) {
  const auto refuses = [&](const DenseSpec& spec, std::initializer_list<const char*> words) {
    const absl::Status status = device()->CreateOperation(spec).status();
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
