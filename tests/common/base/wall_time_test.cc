#include "common/base/wall_time.h"

#include <chrono>

#include "common/base/steady_time.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(WallTimeTest, IsAsFarAwayAsTheSteadyTime) {
  const auto before = std::chrono::system_clock::now();
  const auto time = WallTimeOf(SteadyNow() + absl::Seconds(100));
  EXPECT_GE(time - before, std::chrono::seconds(99));
  EXPECT_LE(time - std::chrono::system_clock::now(), std::chrono::seconds(101));
}

}  // namespace
}  // namespace starring
