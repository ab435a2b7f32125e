#include "worker/data/dataset.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

TEST(DatasetTest, FindsFashionMnistWhereDebianPutsIt) {
  const auto sets = LoadDataset({.name = "fashion-mnist"});
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_EQ(sets->train.count, 60000);
  EXPECT_EQ(sets->test.count, 10000);
  EXPECT_EQ(sets->train.height, 28);
  EXPECT_EQ(sets->train.image_bytes(), 784);
  EXPECT_EQ(sets->train.labels[0], 9);
}

TEST(DatasetTest, RefusesAnUnknownName) {
  const auto sets = LoadDataset({.name = "imagenet"});
  EXPECT_EQ(sets.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(sets.status().message(), HasSubstr("--dataset=imagenet is unknown"));
}

}  // namespace
}  // namespace starring
