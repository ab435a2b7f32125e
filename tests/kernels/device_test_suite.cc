#include "tests/kernels/device_test_suite.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/arithmetic/philox.h"
#include "common/base/check.h"

namespace starring {

// Where a device is missing (no GPU), nothing instantiates the suite, and the instantiating test says so.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Conv2dTest);

DeviceTensor::DeviceTensor(Device* device, const std::vector<float>& values, int offset_lines)
    : device_(device), count_(static_cast<int64_t>(values.size())), offset_lines_(offset_lines) {
  auto buffer = device->Allocate(static_cast<int64_t>(sizeof(float)) * (count_ + 16 * offset_lines));
  CHECK_OK(buffer);
  buffer_ = *std::move(buffer);
  device_->CopyToDevice(values.data(), data(), static_cast<int64_t>(sizeof(float)) * count_);
}

DeviceTensor::DeviceTensor(Device* device, int64_t count, int offset_lines)
    : DeviceTensor(device, std::vector<float>(count, std::numeric_limits<float>::quiet_NaN()), offset_lines) {}

std::vector<float> DeviceTensor::Host() {
  std::vector<float> host(count_);
  device_->CopyToHost(data(), host.data(), static_cast<int64_t>(sizeof(float)) * count_);
  CHECK_OK(device_->Synchronize());
  return host;
}

void DeviceTest::SetUp() {
  auto device = GetParam().create();
  ASSERT_TRUE(device.ok()) << device.status();
  device_ = *std::move(device);
}

std::vector<float> DeviceTest::Random(int64_t count) {
  const RandomKey key = {.seed = ++draws_, .purpose = RandomPurpose::kSynthetic};
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = 2 * UnitFloat(key.At(static_cast<uint64_t>(i))[0]) - 1;
  return values;
}

reference::Values ToDouble(const std::vector<float>& values) { return {values.begin(), values.end()}; }

testing::AssertionResult Near(const std::vector<float>& got, const reference::Values& want, double tolerance) {
  if (got.size() != want.size()) {
    return testing::AssertionFailure() << got.size() << " values, expected " << want.size();
  }
  double magnitude = 1;
  for (const double w : want) magnitude = std::max(magnitude, std::abs(w));
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(double{got[i]} - want[i]);
    if (!(difference <= tolerance * magnitude)) {  // NaN fails
      return testing::AssertionFailure() << "element " << i << " of " << want.size() << " is " << got[i]
                                         << ", expected " << want[i] << " within " << tolerance * magnitude;
    }
  }
  return testing::AssertionSuccess();
}

reference::Values ThroughActivation(Activation activation, const std::vector<float>& y, const std::vector<float>& dy) {
  CHECK_EQ(y.size(), dy.size());
  reference::Values through = ToDouble(dy);
  for (size_t i = 0; i < dy.size(); ++i) {
    if (activation == Activation::kRelu && !(y[i] > 0)) through[i] = 0;
  }
  return through;
}

std::vector<int64_t> SampleOf(int64_t count) {
  std::vector<int64_t> sample;
  const int64_t stride = std::max<int64_t>(1, count / 5);
  for (int64_t i = 0; i < count; i += stride) sample.push_back(i);
  if (sample.back() != count - 1) sample.push_back(count - 1);
  return sample;
}

}  // namespace starring
