#include "server/refusal_log.h"

#include <string>
#include <vector>

#include "common/limits.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(RefusalLogTest, ShowsAFewOfEachPeriodAndCountsTheRest) {
  std::vector<std::string> lines;
  RefusalLog log([&](const std::string& line) { lines.push_back(line); });
  const RefusalLog::Clock::time_point begin = RefusalLog::Clock::now();
  const std::chrono::milliseconds period(kLogPeriodMs);
  for (int64_t i = 0; i < kLogRefusalsMax + 5; ++i) log.Add("refused", begin);
  EXPECT_EQ(std::ssize(lines), kLogRefusalsMax);
  log.Add("still", begin + period - std::chrono::milliseconds(1));
  EXPECT_EQ(std::ssize(lines), kLogRefusalsMax);
  lines.clear();
  log.Add("again", begin + period);
  EXPECT_EQ(lines, (std::vector<std::string>{"6 more refusals are not shown", "again"}));
  lines.clear();
  log.Add("later", begin + 2 * period);
  EXPECT_EQ(lines, (std::vector<std::string>{"later"}));
}

}  // namespace
}  // namespace starring
