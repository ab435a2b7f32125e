#include "common/job/layout.h"

#include <numeric>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

std::vector<float> Numbers(int64_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  return numbers;
}

TEST(LayoutTest, TensorsStartOnCacheLines) {
  const Layout layout =
      Layout::Create({{.name = "a", .dims = {3, 5}}, {.name = "b", .dims = {16}}, {.name = "c"}}).value();
  ASSERT_EQ(layout.tensors().size(), 3u);
  EXPECT_EQ(layout.tensors()[0].range, (ElementRange{0, 15}));
  EXPECT_EQ(layout.tensors()[1].range, (ElementRange{16, 32}));
  EXPECT_EQ(layout.tensors()[2].range, (ElementRange{32, 33}));  // no axes: one scalar
  EXPECT_EQ(layout.element_count(), 48);
  EXPECT_EQ(layout.parameter_count(), 15 + 16 + 1);
}

TEST(LayoutTest, NamesTheTensorOfAnElement) {
  const Layout layout = Layout::Create({{.name = "a", .dims = {15}}, {.name = "b", .dims = {17}}}).value();
  EXPECT_EQ(layout.TensorAt(0), "a");
  EXPECT_EQ(layout.TensorAt(14), "a");
  EXPECT_EQ(layout.TensorAt(15), "");
  EXPECT_EQ(layout.TensorAt(16), "b");
  EXPECT_EQ(layout.TensorAt(32), "b");
  EXPECT_EQ(layout.TensorAt(33), "");
  EXPECT_EQ(layout.TensorAt(1000), "");
  EXPECT_EQ(layout.TensorAt(-1), "");
  EXPECT_EQ(Layout().TensorAt(0), "");
}

TEST(LayoutTest, HashChangesWithEveryField) {
  const TensorSpec base = {.name = "w", .dims = {2, 3}, .torch_axes = {1, 0}, .torch_shape = {3, 2}};
  const auto hash = [](TensorSpec spec) { return Layout::Create({std::move(spec)}).value().hash(); };
  const std::string of_base = hash(base);
  EXPECT_EQ(of_base.size(), 64u);
  EXPECT_EQ(of_base, hash(base));
  TensorSpec other = base;
  other.name = "v";
  EXPECT_NE(hash(other), of_base);
  other = base;
  other.dims = {3, 2};
  EXPECT_NE(hash(other), of_base);
  other = base;
  other.torch_axes = {0, 1};
  EXPECT_NE(hash(other), of_base);
  other = base;
  other.torch_shape = {6};
  EXPECT_NE(hash(other), of_base);
}

TEST(LayoutTest, HashChangesWithTheOrderOfTensors) {
  const TensorSpec a = {.name = "a", .dims = {4}}, b = {.name = "b", .dims = {4}};
  EXPECT_NE(Layout::Create({a, b}).value().hash(), Layout::Create({b, a}).value().hash());
}

TEST(LayoutTest, RefusesWhatIsNoTensor) {
  const auto message = [](std::vector<TensorSpec> specs) {
    const absl::Status status = Layout::Create(std::move(specs)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({{.name = "", .dims = {1}}}), HasSubstr("tensor 0 of the layout has no name"));
  EXPECT_THAT(message({{.name = "a", .dims = {1}}, {.name = "a", .dims = {1}}}), HasSubstr("tensor a is there twice"));
  EXPECT_THAT(message({{.name = "a", .dims = {2, 0}}}), HasSubstr("{2, 0} has size 0"));
  EXPECT_THAT(message({{.name = "a", .dims = {2, 3}, .torch_axes = {0, 0}}}), HasSubstr("{0, 0} is no permutation"));
  EXPECT_THAT(message({{.name = "a", .dims = {2, 3}, .torch_axes = {0}}}), HasSubstr("no permutation of the 2 axes"));
  EXPECT_THAT(message({{.name = "a", .dims = {2, 3}, .torch_shape = {5}}}),
              HasSubstr("6 elements, torch_shape {5} has 5"));
  EXPECT_THAT(message({{.name = "a", .dims = {int64_t{1} << 40, int64_t{1} << 40}}}), HasSubstr("more than"));
  EXPECT_THAT(message({{.name = "a", .dims = {kElementCountMax / 2, 3}}}), HasSubstr("more than"));
  EXPECT_THAT(message({{.name = "a", .dims = {kElementCountMax}}, {.name = "b", .dims = {1}}}),
              HasSubstr("longer than"));
  EXPECT_THAT(message({{.name = "a", .dims = {1, 1, 1, 1, 1, 1, 1, 1, 1}}}), HasSubstr("9 axes"));
}

// A convolution's weight {out, height, width, in} is PyTorch's {out, in, height, width}.
TEST(LayoutTest, ConvertsAConvolutionToTorchOrderAndBack) {
  const int64_t out_count = 2, height = 3, width = 5, in_count = 4;
  const TensorSpec spec = {.name = "w", .dims = {out_count, height, width, in_count}, .torch_axes = {0, 3, 1, 2}};
  const std::vector<float> ours = Numbers(out_count * height * width * in_count);
  std::vector<float> torch(ours.size()), back(ours.size());
  ToTorchOrder(spec, ours, torch);
  for (int64_t o = 0; o < out_count; ++o) {
    for (int64_t i = 0; i < in_count; ++i) {
      for (int64_t y = 0; y < height; ++y) {
        for (int64_t x = 0; x < width; ++x) {
          EXPECT_EQ(torch[((o * in_count + i) * height + y) * width + x],
                    ours[((o * height + y) * width + x) * in_count + i]);
        }
      }
    }
  }
  FromTorchOrder(spec, torch, back);
  EXPECT_EQ(back, ours);
}

TEST(LayoutTest, NoAxesMeansTheSameOrder) {
  const TensorSpec spec = {.name = "w", .dims = {2, 3}};
  const std::vector<float> ours = Numbers(6);
  std::vector<float> torch(6), back(6);
  ToTorchOrder(spec, ours, torch);
  EXPECT_EQ(torch, ours);
  FromTorchOrder(spec, torch, back);
  EXPECT_EQ(back, ours);
}

TEST(LayoutTest, RefusesMoreTensorsThanAllowed) {
  const std::vector<TensorSpec> tensors((1 << 20) + 1, {.name = "a", .dims = {1}});
  EXPECT_THAT(std::string(Layout::Create(tensors).status().message()), HasSubstr("1048577 tensors"));
}

}  // namespace
}  // namespace starring
