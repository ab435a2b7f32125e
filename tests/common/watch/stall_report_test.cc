#include "common/watch/stall_report.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

TEST(StallReportTest, SeveralSourcesOfOneStallMakeOneLineAndOneMoreAtItsEnd) {
  const StallReport::Time start{seconds(100)};
  std::vector<std::string> lines;
  StallReport report([&](const std::string& line) { lines.push_back(line); });
  report.Close(0, start);
  report.Open(1, start, "stuck");
  report.Open(0, start + seconds(1), "stuck too");
  report.Open(1, start + seconds(1), "stuck still");
  report.Close(1, start + seconds(5));
  EXPECT_TRUE(report.IsOpen(0));
  EXPECT_THAT(lines, ElementsAre("stuck"));
  report.Close(0, start + seconds(6));
  EXPECT_THAT(lines, ElementsAre("stuck", "the job goes on after 6.0 s"));
  report.Open(0, start + seconds(20), "again");
  EXPECT_EQ(lines.back(), "again");
}

}  // namespace
}  // namespace starring
