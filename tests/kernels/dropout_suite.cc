#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/philox.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

std::vector<float> Forward(Device* device, const DropoutSpec& spec, const std::vector<float>& x_host, int64_t step,
                           int64_t first_sample) {
  auto dropout = device->CreateDropout(spec);
  EXPECT_TRUE(dropout.ok()) << dropout.status();
  if (!dropout.ok()) return {};
  DeviceTensor x(device, x_host), y(device, static_cast<int64_t>(x_host.size()));
  (*dropout)->Forward(x.data(), step, first_sample, y.data());
  return y.Host();
}

TEST_P(DeviceTest, DropoutFollowsThePhiloxWords) {
  for (const int64_t elements : {1, 2, 3, 5, 16, 67, 1000}) {
    for (const int64_t first_sample : {0, 1, 7, 1 << 30}) {
      const DropoutSpec spec = {
          .batch = 3, .sample_elements = elements, .rate = 0.3f, .seed = 0x123456789abcdef, .stream = 17};
      SCOPED_TRACE(absl::StrCat(elements, " elements from sample ", first_sample));
      const std::vector<float> x = Random(3 * elements);
      const std::vector<float> y = Forward(device(), spec, x, 41, first_sample);
      const RandomKey key = {.seed = spec.seed, .purpose = RandomPurpose::kDropout, .stream = 17, .epoch = 41};
      for (int64_t i = 0; i < 3 * elements; ++i) {
        const uint64_t word = static_cast<uint64_t>(first_sample * elements + i);
        const bool kept = UnitFloat(key.At(word / 4)[word % 4]) >= spec.rate;
        ASSERT_FLOAT_EQ(y[i], kept ? x[i] * (1 / (1 - spec.rate)) : 0.0f) << "element " << i;
      }
    }
  }
}

TEST_P(DeviceTest, DropoutOfABatchCutOverTwoRanksIsThatOfTheWholeBatch) {
  const int64_t elements = 37;
  DropoutSpec spec = {.batch = 11, .sample_elements = elements, .seed = 5, .stream = 2};
  const std::vector<float> x(11 * elements, 1.0f);
  const std::vector<float> whole = Forward(device(), spec, x, 3, 100);
  spec.batch = 4;
  std::vector<float> parts = Forward(device(), spec, std::vector<float>(4 * elements, 1.0f), 3, 100);
  spec.batch = 7;
  const std::vector<float> second = Forward(device(), spec, std::vector<float>(7 * elements, 1.0f), 3, 104);
  parts.insert(parts.end(), second.begin(), second.end());
  EXPECT_EQ(whole, parts);
  spec.batch = 11;
  EXPECT_NE(whole, Forward(device(), spec, x, 4, 100)) << "another step, another mask";
  spec.stream = 3;
  EXPECT_NE(whole, Forward(device(), spec, x, 3, 100)) << "another layer, another mask";
}

TEST_P(DeviceTest, DropoutKeepsTheMean) {
  for (const float rate : {0.0f, 0.25f, 0.5f, 0.9f}) {
    const DropoutSpec spec = {.batch = 100, .sample_elements = 1000, .rate = rate, .seed = 1};
    double sum = 0;
    for (const float v : Forward(device(), spec, std::vector<float>(100'000, 1.0f), 0, 0)) sum += v;
    EXPECT_NEAR(sum / 100'000, 1, 0.04) << "rate " << rate;  // the largest deviation, at 0.9, is 0.0095
  }
}

TEST_P(DeviceTest, DropoutBackwardUsesTheMaskOfTheLastForwardInPlaceToo) {
  const DropoutSpec spec = {.batch = 5, .sample_elements = 13, .rate = 0.5f, .seed = 9};
  auto dropout = device()->CreateDropout(spec);
  ASSERT_TRUE(dropout.ok()) << dropout.status();
  DeviceTensor x(device(), std::vector<float>(65, 1.0f)), y(device(), 65);
  (*dropout)->Forward(x.data(), 0, 0, y.data());
  (*dropout)->Forward(x.data(), 1, 3, y.data());
  const std::vector<float> mask = y.Host();  // ones times the mask
  const std::vector<float> dy_host = Random(65);
  DeviceTensor dy(device(), dy_host), dx(device(), 65);
  (*dropout)->Backward(dy.data(), dx.data());
  std::vector<float> want(65);
  for (int i = 0; i < 65; ++i) want[i] = dy_host[i] * mask[i];
  EXPECT_EQ(dx.Host(), want);
  (*dropout)->Backward(dy.data(), dy.data());
  EXPECT_EQ(dy.Host(), want);
  (*dropout)->Forward(x.data(), 1, 3, x.data());
  EXPECT_EQ(x.Host(), mask);
}

TEST_P(DeviceTest, DropoutRefusesWhatMakesNoSense) {
  const auto refuses = [&](const DropoutSpec& spec, const char* words) {
    const absl::Status status = device()->CreateDropout(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(words));
  };
  refuses({.batch = 0, .sample_elements = 1}, "batch is 0");
  refuses({.batch = 1, .sample_elements = -1}, "sample_elements is -1");
  refuses({.batch = 1, .sample_elements = 1, .rate = 1.0f}, "rate is 1");
  refuses({.batch = 1, .sample_elements = 1, .rate = -0.5f}, "rate is -0.5");
  refuses({.batch = 1, .sample_elements = 1, .stream = 1u << 24}, "stream is 16777216");
}

}  // namespace
}  // namespace starring
