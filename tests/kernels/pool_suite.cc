#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

using reference::Values;

std::string Describe(const Pool2dSpec& s) {
  return absl::StrCat("batch ", s.batch, ", in ", s.in_height, "x", s.in_width, "x", s.channels, ", kernel ",
                      s.kernel_height, "x", s.kernel_width, ", stride ", s.stride_height, "x", s.stride_width,
                      ", padding ", s.padding_height, "x", s.padding_width);
}

int64_t InCount(const Pool2dSpec& s) { return s.batch * s.in_height * s.in_width * s.channels; }
int64_t OutCount(const Pool2dSpec& s) { return s.batch * s.out_height() * s.out_width() * s.channels; }

std::vector<Pool2dSpec> Shapes() {
  std::vector<Pool2dSpec> shapes;
  for (const int64_t channels : {1, 3, 5, 6, 16, 17, 64}) {
    // Whole windows, then sizes that leave a row or a column over; one image, and several.
    shapes.push_back({.batch = 3, .in_height = 8, .in_width = 34, .channels = channels});
    shapes.push_back({.batch = 1, .in_height = 2, .in_width = 32, .channels = channels});
    shapes.push_back({.batch = 2, .in_height = 7, .in_width = 39, .channels = channels});
    shapes.push_back({.batch = 2, .in_height = 5, .in_width = 5, .channels = channels});
    // Windows that overlap, with padding.
    shapes.push_back({.batch = 2,
                      .in_height = 7,
                      .in_width = 6,
                      .channels = channels,
                      .kernel_height = 3,
                      .kernel_width = 3,
                      .padding_height = 1,
                      .padding_width = 1});
    // Windows with gaps between them, not square.
    shapes.push_back({.batch = 63,
                      .in_height = 6,
                      .in_width = 11,
                      .channels = channels,
                      .kernel_height = 1,
                      .kernel_width = 2,
                      .stride_height = 2,
                      .stride_width = 3,
                      .padding_width = 1});
  }
  shapes.push_back({.batch = 1,
                    .in_height = 1,
                    .in_width = 1,
                    .channels = 1,
                    .kernel_height = 1,
                    .kernel_width = 1,
                    .stride_height = 1,
                    .stride_width = 1});
  // More elements in a window than a byte can number.
  for (const int64_t channels : {3, 4}) {
    shapes.push_back({.batch = 2,
                      .in_height = 20,
                      .in_width = 21,
                      .channels = channels,
                      .kernel_height = 17,
                      .kernel_width = 16,
                      .stride_height = 1,
                      .stride_width = 2,
                      .padding_height = 2});
  }
  return shapes;
}

struct Results {
  std::vector<float> y, dx;
  friend bool operator==(const Results&, const Results&) = default;
};

Results RunPool(Device* device, const Pool2dSpec& spec, const std::vector<float>& x_host,
                const std::vector<float>& dy_host, int offset_lines = 0) {
  auto pool = device->CreateOperation(spec);
  EXPECT_TRUE(pool.ok()) << pool.status();
  if (!pool.ok()) return {};
  DeviceTensor x(device, x_host, offset_lines), dy(device, dy_host);
  DeviceTensor y(device, OutCount(spec), offset_lines), dx(device, InCount(spec), offset_lines);
  (*pool)->Forward(x.data(), nullptr, nullptr, y.data());
  (*pool)->Backward(nullptr, nullptr, nullptr, dy.data(), dx.data(), nullptr, nullptr);
  return {y.Host(), dx.Host()};
}

TEST_P(DeviceTest, MaxPoolMatchesTheReferenceExactly) {
  for (const Pool2dSpec& spec : Tested(Shapes())) {
    SCOPED_TRACE(Describe(spec));
    const std::vector<float> x = Random(InCount(spec)), dy = Random(OutCount(spec));
    const Results got = RunPool(device(), spec, x, dy);
    EXPECT_TRUE(Near(got.y, reference::MaxPool2d(spec, ToDouble(x)), 0));
    EXPECT_TRUE(Near(got.dx, reference::MaxPool2dBackward(spec, ToDouble(x), ToDouble(dy)), 1e-6));
    EXPECT_TRUE(got == RunPool(device(), spec, x, dy, 3)) << "at another address";
  }
}

TEST_P(DeviceTest, MaxPoolGivesTheGradientOfATieToTheFirst) {
  for (const Pool2dSpec& spec : Tested(Shapes())) {
    SCOPED_TRACE(Describe(spec));
    std::vector<float> x = Random(InCount(spec));
    for (float& v : x) v = std::floor(v * 2) - 3;  // few different values, all negative: padding must not win either
    const std::vector<float> dy = Random(OutCount(spec));
    const Results got = RunPool(device(), spec, x, dy);
    EXPECT_TRUE(Near(got.y, reference::MaxPool2d(spec, ToDouble(x)), 0));
    EXPECT_TRUE(Near(got.dx, reference::MaxPool2dBackward(spec, ToDouble(x), ToDouble(dy)), 1e-6));
  }
}

TEST_P(DeviceTest, MaxPoolGradientMatchesFiniteDifferences) {
  for (const Pool2dSpec& spec : Tested(Shapes())) {
    SCOPED_TRACE(Describe(spec));
    const std::vector<float> x = Random(InCount(spec)), dy = Random(OutCount(spec));
    const Results got = RunPool(device(), spec, x, dy);
    const Values weights = ToDouble(dy);
    for (const int64_t i : SampleOf(InCount(spec))) {
      const auto loss = [&](const Values& v) { return reference::Dot(reference::MaxPool2d(spec, v), weights); };
      EXPECT_NEAR(got.dx[i], reference::FiniteDifference(loss, ToDouble(x), i), 1e-5) << "dx[" << i << "]";
    }
  }
}

TEST_P(DeviceTest, MaxPoolPassesNanAndInfinityOn) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Pool2dSpec& spec : Tested(Shapes())) {
    SCOPED_TRACE(Describe(spec));
    std::vector<float> x(InCount(spec), -infinity);
    const std::vector<float> dy = Random(OutCount(spec));
    const Results lowest = RunPool(device(), spec, x, dy);
    EXPECT_THAT(lowest.y, testing::Each(-infinity));
    EXPECT_TRUE(Near(lowest.dx, reference::MaxPool2dBackward(spec, ToDouble(x), ToDouble(dy)), 1e-6));
    std::fill(x.begin(), x.end(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_THAT(RunPool(device(), spec, x, dy).y, testing::Each(testing::IsNan()));
  }
}

TEST_P(DeviceTest, MaxPoolRefusesShapesThatMakeNoSense) {
  const Pool2dSpec good = {.batch = 2, .in_height = 5, .in_width = 6, .channels = 3};
  const auto refuses = [&](void (*change)(Pool2dSpec&), std::initializer_list<const char*> words) {
    Pool2dSpec spec = good;
    change(spec);
    const absl::Status status = device()->CreateOperation(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << Describe(spec);
    for (const char* word : words) EXPECT_THAT(std::string(status.message()), testing::HasSubstr(word));
  };
  refuses([](Pool2dSpec& s) { s.batch = 0; }, {"batch", "0"});
  refuses([](Pool2dSpec& s) { s.channels = -1; }, {"channels", "-1"});
  refuses([](Pool2dSpec& s) { s.in_width = 0; }, {"in_width", "0"});
  refuses([](Pool2dSpec& s) { s.kernel_height = 0; }, {"kernel_height", "0"});
  refuses([](Pool2dSpec& s) { s.stride_width = -1; }, {"stride_width", "-1"});
  refuses([](Pool2dSpec& s) { s.kernel_height = 6; }, {"kernel_height", "6", "5"});
  refuses([](Pool2dSpec& s) { s.padding_width = 2; }, {"padding_width", "2", "kernel_width 2"});
  refuses([](Pool2dSpec& s) { s.padding_height = -2; }, {"padding_height", "-2"});
}

}  // namespace
}  // namespace starring
