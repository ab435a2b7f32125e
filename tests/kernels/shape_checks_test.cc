#include "kernels/shape_checks.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

constexpr Conv2dSpec kConv = {.batch = 2, .in_height = 5, .in_width = 5, .in_channels = 3, .out_channels = 4};
constexpr Pool2dSpec kPool = {.batch = 2, .in_height = 4, .in_width = 4, .channels = 3};
constexpr BatchNormSpec kNorm = {.batch = 2, .height = 1, .width = 1, .channels = 3};
constexpr DropoutSpec kDropout = {.batch = 2, .sample_elements = 3};

// `base` with `change` made to it is refused in words that have `words`.
template <typename Spec, typename Change>
void ExpectRefused(const Spec& base, Change change, const std::string& words) {
  Spec spec = base;
  EXPECT_TRUE(CheckShape(spec).ok());
  change(spec);
  const absl::Status status = CheckShape(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << words;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(ShapeChecksTest, SizesBelowOneAreRefusedByName) {
  ExpectRefused(
      kConv, [](auto& s) { s.batch = 0; }, "conv2d: batch is 0");
  ExpectRefused(
      kConv, [](auto& s) { s.stride_width = -1; }, "conv2d: stride_width is -1");
  ExpectRefused(
      kConv, [](auto& s) { s.padding_height = -1; }, "conv2d: padding_height is -1");
  ExpectRefused(
      kPool, [](auto& s) { s.channels = 0; }, "max pool: channels is 0");
  ExpectRefused(
      DenseSpec{.batch = 1, .in = 1, .out = 1}, [](auto& s) { s.in = 0; }, "dense: in is 0");
  ExpectRefused(
      GlobalAveragePoolSpec{.batch = 1, .height = 1, .width = 1, .channels = 1}, [](auto& s) { s.height = 0; },
      "global average pool: height is 0");
  ExpectRefused(
      kNorm, [](auto& s) { s.width = 0; }, "batch norm: width is 0");
  ExpectRefused(
      kDropout, [](auto& s) { s.sample_elements = 0; }, "dropout: sample_elements is 0");
  ExpectRefused(
      LossSpec{.batch = 1, .outputs = 1}, [](auto& s) { s.outputs = 0; }, "outputs is 0");
}

TEST(ShapeChecksTest, WindowsPartsAndGroupsFitTheirTensors) {
  ExpectRefused(
      AveragePool2dSpec{kPool}, [](auto& s) { s.kernel_width = 7; }, "average pool: kernel_width is 7");
  ExpectRefused(
      DepthwiseConv2dSpec{kPool}, [](auto& s) { s.stride_height = 0; }, "depthwise conv2d: stride_height is 0");
  ExpectRefused(
      ActivationSpec{.batch = 2, .sample_elements = 3}, [](auto& s) { s.sample_elements = 0; },
      "activation: sample_elements is 0");
  const ConcatPartSpec part = {.batch = 1, .pixels = 2, .channels = 3, .out_channels = 5, .offset = 2};
  ExpectRefused(
      part, [](auto& s) { s.offset = 3; }, "concat: channels 3 to 6 of an output with 5");
  ExpectRefused(
      part, [](auto& s) { s.offset = -1; }, "concat: offset is -1");
  const GroupNormSpec norm = {.batch = 1, .pixels = 2, .channels = 6, .groups = 3};
  ExpectRefused(
      norm, [](auto& s) { s.groups = 4; }, "group norm: 6 channels in 4 groups");
  for (const float wrong : {0.0f, std::numeric_limits<float>::quiet_NaN()}) {
    ExpectRefused(
        norm, [wrong](auto& s) { s.epsilon = wrong; }, "must be above 0");
  }
}

TEST(ShapeChecksTest, LabelSmoothingIsBelowOne) {
  const LossSpec loss = {.batch = 1, .outputs = 1};
  for (const float wrong : {-0.1f, 1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    ExpectRefused(
        loss, [wrong](auto& s) { s.label_smoothing = wrong; }, "must be in [0, 1)");
  }
  ExpectRefused(
      loss, [](auto& s) { s.label_smoothing = 1; }, "loss: label_smoothing is 1");
}

TEST(ShapeChecksTest, AKernelFitsIntoThePaddedInput) {
  Conv2dSpec spec = kConv;
  spec.kernel_height = 7;
  spec.padding_height = 1;
  EXPECT_TRUE(CheckShape(spec).ok());
  spec.kernel_height = 8;
  EXPECT_THAT(std::string(CheckShape(spec).message()), HasSubstr("kernel_height is 8, in_height with padding 7"));
}

// The maximum of a window that sees padding alone would be -infinity.
TEST(ShapeChecksTest, AWindowOfAPoolSeesTheInput) {
  ExpectRefused(
      kPool, [](auto& s) { s.padding_width = s.kernel_width; }, "padding must be smaller");
}

TEST(ShapeChecksTest, TheLargestTensorIsTakenAndOneElementMoreIsNot) {
  DenseSpec spec = {.batch = 1, .in = kTensorElementsMax, .out = 1};
  EXPECT_TRUE(CheckShape(spec).ok());
  ++spec.in;
  EXPECT_THAT(std::string(CheckShape(spec).message()), HasSubstr("at most 2147483647"));
  // A product that overflows 64 bits must not pass for a small one.
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(CheckShape(DenseSpec{.batch = kHuge, .in = kHuge, .out = kHuge}).ok());
}

TEST(ShapeChecksTest, RatesAndFactorsAreInTheirRanges) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float epsilon : {0.0f, -1.0f, kNan}) {
    ExpectRefused(
        kNorm, [&](auto& s) { s.epsilon = epsilon; }, "epsilon");
  }
  for (const float momentum : {-0.1f, 1.1f, kNan}) {
    ExpectRefused(
        kNorm, [&](auto& s) { s.momentum = momentum; }, "momentum");
  }
  for (const float rate : {-0.1f, 1.0f, kNan}) {
    ExpectRefused(
        kDropout, [&](auto& s) { s.rate = rate; }, "rate");
  }
  ExpectRefused(
      kDropout, [](auto& s) { s.stream = 1u << 24; }, "stream");
}

}  // namespace
}  // namespace starring
