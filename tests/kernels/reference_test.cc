// Checks the reference's gradients by finite differences of its forward, at every element of small shapes.
#include "tests/kernels/reference.h"

#include <cmath>

#include "common/arithmetic/philox.h"
#include "gtest/gtest.h"

namespace starring::reference {
namespace {

Values Random(int64_t count, uint64_t seed) {
  Values values(count);
  for (int64_t i = 0; i < count; ++i) {
    const RandomKey key = {.seed = seed, .purpose = RandomPurpose::kSynthetic};
    values[i] = 2 * double{UnitFloat(key.At(static_cast<uint64_t>(i))[0])} - 1;
  }
  return values;
}

void ExpectGradient(const Values& gradient, const Values& at, const std::function<double(const Values&)>& loss) {
  ASSERT_EQ(gradient.size(), at.size());
  for (size_t i = 0; i < at.size(); ++i) {
    EXPECT_NEAR(gradient[i], FiniteDifference(loss, at, static_cast<int64_t>(i)), 1e-7) << i;
  }
}

TEST(Reference, ConvolutionByHand) {
  const Conv2dSpec spec = {.batch = 1,
                           .in_height = 2,
                           .in_width = 3,
                           .in_channels = 1,
                           .out_channels = 2,
                           .kernel_height = 2,
                           .kernel_width = 2,
                           .padding_width = 1};
  const Values y = Conv2d(spec, {1, 2, 3, 4, 5, 6}, {1, 10, 100, 1000, 0, 0, 0, 1}, {0.5, 0});
  EXPECT_EQ(y, Values({4010.5, 4, 5421.5, 5, 6532.5, 6, 603.5, 0}));
}

TEST(Reference, ConvolutionGradients) {
  const Conv2dSpec spec = {.batch = 2,
                           .in_height = 5,
                           .in_width = 4,
                           .in_channels = 2,
                           .out_channels = 3,
                           .kernel_height = 3,
                           .kernel_width = 2,
                           .stride_height = 2,
                           .stride_width = 1,
                           .padding_height = 1,
                           .padding_width = 1,
                           .activation = Activation::kRelu};
  const Values x = Random(80, 1), weight = Random(36, 2), bias = Random(3, 3), y = Conv2d(spec, x, weight, bias);
  const Values dy = Random(static_cast<int64_t>(y.size()), 4);
  const Gradients gradients = Conv2dBackward(spec, x, weight, y, dy);
  ExpectGradient(gradients.dx, x, [&](const Values& v) { return Dot(Conv2d(spec, v, weight, bias), dy); });
  ExpectGradient(gradients.dweight, weight, [&](const Values& v) { return Dot(Conv2d(spec, x, v, bias), dy); });
  ExpectGradient(gradients.dbias, bias, [&](const Values& v) { return Dot(Conv2d(spec, x, weight, v), dy); });
}

TEST(Reference, DenseGradients) {
  const DenseSpec spec = {.batch = 3, .in = 5, .out = 4, .activation = Activation::kRelu};
  const Values x = Random(15, 1), weight = Random(20, 2), bias = Random(4, 3), y = Dense(spec, x, weight, bias);
  const Values dy = Random(12, 4);
  const Gradients gradients = DenseBackward(spec, x, weight, y, dy);
  ExpectGradient(gradients.dx, x, [&](const Values& v) { return Dot(Dense(spec, v, weight, bias), dy); });
  ExpectGradient(gradients.dweight, weight, [&](const Values& v) { return Dot(Dense(spec, x, v, bias), dy); });
  ExpectGradient(gradients.dbias, bias, [&](const Values& v) { return Dot(Dense(spec, x, weight, v), dy); });
}

TEST(Reference, MaxPoolGradient) {
  const Pool2dSpec spec = {.batch = 2,
                           .in_height = 5,
                           .in_width = 4,
                           .channels = 3,
                           .kernel_height = 3,
                           .kernel_width = 2,
                           .stride_height = 2,
                           .stride_width = 1,
                           .padding_height = 1};
  const Values x = Random(120, 1), dy = Random(static_cast<int64_t>(MaxPool2d(spec, x).size()), 2);
  ExpectGradient(MaxPool2dBackward(spec, x, dy), x, [&](const Values& v) { return Dot(MaxPool2d(spec, v), dy); });
}

}  // namespace
}  // namespace starring::reference
