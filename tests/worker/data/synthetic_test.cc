#include "worker/data/synthetic.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/arithmetic/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

DatasetOptions Options() {
  DatasetOptions options;
  options.name = "synthetic";
  options.synthetic_train_count = 200;
  options.synthetic_test_count = 100;
  options.synthetic_height = 5;
  options.synthetic_width = 7;
  options.synthetic_channels = 3;
  options.synthetic_classes = 4;
  options.seed = 9;
  return options;
}

TEST(SyntheticTest, HasTheSizeAskedFor) {
  const auto sets = MakeSynthetic(Options());
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_EQ(sets->train.count, 200);
  EXPECT_EQ(sets->test.count, 100);
  for (const Dataset* set : {&sets->train, &sets->test}) {
    EXPECT_EQ(set->height, 5);
    EXPECT_EQ(set->width, 7);
    EXPECT_EQ(set->channels, 3);
    EXPECT_EQ(set->classes, 4);
    EXPECT_EQ(std::ssize(set->images), set->count * 105);
    ASSERT_EQ(std::ssize(set->labels), set->count);
    for (int64_t i = 0; i < set->count; ++i) EXPECT_EQ(set->labels[i], i % 4);
  }
}

TEST(SyntheticTest, PixelsAreTheDocumentedOnes) {
  const auto sets = MakeSynthetic(Options());
  const auto byte = [](uint32_t stream, int64_t picture, int64_t b) -> uint32_t {
    const RandomKey key{.seed = 9, .purpose = RandomPurpose::kSynthetic, .stream = stream};
    return key.At(picture * 7 + b / 16)[b % 16 / 4] >> (8 * (b % 4)) & 255;  // 105 bytes are 7 blocks
  };
  for (const int64_t b : {0, 1, 4, 15, 16, 31, 104}) {
    EXPECT_EQ(sets->train.images[6 * 105 + b], (byte(0, 2, b) + 3 * byte(1, 6, b)) / 4) << b;
    EXPECT_EQ(sets->test.images[99 * 105 + b], (byte(0, 3, b) + 3 * byte(2, 99, b)) / 4) << b;
  }
}

TEST(SyntheticTest, SeedsDiffer) {
  DatasetOptions other = Options();
  other.seed = 10;
  EXPECT_EQ(MakeSynthetic(Options())->train.images, MakeSynthetic(Options())->train.images);
  EXPECT_NE(MakeSynthetic(Options())->train.images, MakeSynthetic(other)->train.images);
}

// The nearest mean of the training images names the class of a test image: there is something to learn.
TEST(SyntheticTest, TheClassCanBeLearnt) {
  DatasetOptions options = Options();
  options.synthetic_train_count = 2000;
  options.synthetic_height = 16;
  options.synthetic_width = 16;
  const auto sets = MakeSynthetic(options);
  const int64_t bytes = sets->train.image_bytes();
  std::vector<std::vector<double>> means(4, std::vector<double>(bytes));
  for (int64_t i = 0; i < 2000; ++i) {
    for (int64_t b = 0; b < bytes; ++b) means[i % 4][b] += sets->train.images[i * bytes + b] / 500.0;
  }
  int correct = 0;
  for (int64_t i = 0; i < sets->test.count; ++i) {
    int nearest = 0;
    std::vector<double> distance(4);
    for (int k = 0; k < 4; ++k) {
      for (int64_t b = 0; b < bytes; ++b) distance[k] += std::pow(sets->test.images[i * bytes + b] - means[k][b], 2);
      if (distance[k] < distance[nearest]) nearest = k;
    }
    correct += nearest == sets->test.labels[i];
  }
  EXPECT_GE(correct, 99);
}

TEST(SyntheticTest, RefusesImpossibleSizes) {
  const auto message = [](const DatasetOptions& options) {
    const auto sets = MakeSynthetic(options);
    EXPECT_EQ(sets.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sets.status().message());
  };
  DatasetOptions options = Options();
  options.synthetic_width = 0;
  EXPECT_THAT(message(options), HasSubstr("synthetic width is 0, expected 1 to 8192"));
  options = Options();
  options.synthetic_height = 8193;
  EXPECT_THAT(message(options), HasSubstr("synthetic height is 8193, expected 1 to 8192"));
  options = Options();
  options.synthetic_channels = 257;
  EXPECT_THAT(message(options), HasSubstr("synthetic channels is 257, expected 1 to 256"));
  options = Options();
  options.synthetic_height = options.synthetic_width = options.synthetic_channels = 1;
  options.synthetic_test_count = int64_t{1} << 32;
  EXPECT_THAT(message(options), HasSubstr("synthetic test_count is 4294967296, expected 1 to 4294967295"));
  options = Options();
  options.synthetic_classes = 257;
  EXPECT_THAT(message(options), HasSubstr("synthetic classes is 257, expected 1 to 256"));
  options = Options();
  options.synthetic_train_count = int64_t{1} << 40;
  EXPECT_THAT(message(options), HasSubstr("synthetic train_count is 1099511627776, expected 1 to 163617801"));
}

}  // namespace
}  // namespace starring
