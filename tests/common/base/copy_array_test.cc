#include "common/base/copy_array.h"

#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(CopyArrayTest, CopiesAllOfOneArrayToTheStartOfAnother) {
  const std::vector<int> from = {1, 2, 3};
  std::vector<int> to = {7, 7, 7, 7};
  CopyArray(std::span(from), std::span(to));
  EXPECT_EQ(to, (std::vector<int>{1, 2, 3, 7}));
  CopyArray(std::span(from).first(0), std::span(to));
  EXPECT_EQ(to[0], 1);
}

TEST(CopyArrayDeathTest, RefusesAShorterPlace) {
  const std::vector<int> from = {1, 2, 3};
  std::vector<int> to = {7};
  EXPECT_DEATH(CopyArray(std::span(from), std::span(to)), "3");
}

}  // namespace
}  // namespace starring
