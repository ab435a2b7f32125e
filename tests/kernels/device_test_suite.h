// One suite of tests for every device: the operations of kernels/device.h against tests/kernels/reference.h.
//
// A device's own test links //tests/kernels:device_test_suite and instantiates:
//   INSTANTIATE_TEST_SUITE_P(Cuda, DeviceTest, testing::Values(DeviceMaker{"cuda", [] { return CreateCudaDevice(); }}),
//                            DeviceMaker::Name);
// and Conv2dTest likewise.
#ifndef STARRING_TESTS_KERNELS_DEVICE_TEST_SUITE_H_
#define STARRING_TESTS_KERNELS_DEVICE_TEST_SUITE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/kernels/reference.h"

namespace starring {

struct DeviceMaker {
  std::string name;  // letters, digits, underscores
  std::function<absl::StatusOr<std::unique_ptr<Device>>()> create;
  double tolerance_factor = 1;  // for layers with weights: more than 1 where products round their factors

  friend void PrintTo(const DeviceMaker& maker, std::ostream* out) { *out << maker.name; }
  static std::string Name(const testing::TestParamInfo<DeviceMaker>& info) { return info.param.name; }
};

// Numbers in device memory.
class DeviceTensor {
 public:
  // The tensor begins `offset_lines` 64-byte lines after the start of the allocation.
  DeviceTensor(Device* device, const std::vector<float>& values, int offset_lines = 0);
  // Filled with NaN, so that an element that an operation does not write shows.
  DeviceTensor(Device* device, int64_t count, int offset_lines = 0);

  float* data() { return buffer_->floats() + 16 * offset_lines_; }
  std::vector<float> Host();

 private:
  Device* const device_;
  const int64_t count_;
  const int offset_lines_;
  std::unique_ptr<DeviceBuffer> buffer_;
};

class DeviceTest : public testing::TestWithParam<DeviceMaker> {
 public:
  Device* device() { return device_.get(); }

  static double tolerance_factor() { return GetParam().tolerance_factor; }

  // `count` numbers in [-1, 1), the same on every run; a new set for every call of a test.
  std::vector<float> Random(int64_t count);

 protected:
  void SetUp() override;

 private:
  std::unique_ptr<Device> device_;
  uint64_t draws_ = 0;
};

// Convolutions have a suite of their own: a device may have several ways to compute them, and one for everything else.
class Conv2dTest : public DeviceTest {};

reference::Values ToDouble(const std::vector<float>& values);

// Success if both have one length, and the largest difference is at most `tolerance` times the larger of 1 and the
// largest expected magnitude.
inline constexpr double kTolerance = 2e-5;
testing::AssertionResult Near(const std::vector<float>& got, const reference::Values& want,
                              double tolerance = kTolerance);

// dy where the activation with output `y` lets it through, else 0. With this, and no activation in the loss, a finite
// difference cannot step over a kink.
reference::Values ThroughActivation(Activation activation, const std::vector<float>& y, const std::vector<float>& dy);

// A few indices below `count`: the ends and some between.
std::vector<int64_t> SampleOf(int64_t count);

// The shapes that a suite tests: all of them. Under a sanitizer, which checks accesses and not numbers: the first two
// (the smallest, an odd one) and every fifth, because all of them took 400 seconds.
template <typename Spec>
std::vector<Spec> Tested(const std::vector<Spec>& shapes) {
#if defined(STARRING_ASAN) || defined(STARRING_TSAN) || defined(STARRING_UBSAN)
  std::vector<Spec> few;
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (i < 2 || i % 5 == 0) few.push_back(shapes[i]);
  }
  return few;
#else
  return shapes;
#endif
}

}  // namespace starring

#endif  // STARRING_TESTS_KERNELS_DEVICE_TEST_SUITE_H_
