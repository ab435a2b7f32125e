#include "deploy/launch/run_state.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace starring {
namespace {

std::string NameIn(const std::string& log) {
  const std::string folder = testing::TempDir();
  std::ofstream(folder + "/generations.log") << log;
  return UnfinishedRun(folder);
}

TEST(RunStateTest, TheNameOfARunThatHasNotEnded) {
  const std::string run = "run name=launch-12ab-0 leaves=8 shards=2 job=ff first=0 crc=01234567\n";
  EXPECT_EQ(NameIn(run), "launch-12ab-0");
  EXPECT_EQ(NameIn(run + "prepare 1 crc=01234567\ncommit 1 first=0 crc=01234567\n"), "launch-12ab-0");
  EXPECT_EQ(NameIn(run + "prepare 1 crc=01234567\nend 30 crc=01"), "launch-12ab-0");
  EXPECT_EQ(NameIn(run + "prepare 1 crc=01234567\nend 30 crc=01234567\n"), "");
}

TEST(RunStateTest, NoNameThatCanBeGiven) {
  EXPECT_EQ(UnfinishedRun("/nowhere"), "");
  EXPECT_EQ(NameIn(""), "");
  EXPECT_EQ(NameIn("run name=cut"), "");
  EXPECT_EQ(NameIn("run name= leaves=8\n"), "");
  EXPECT_EQ(NameIn("run name=a%20b leaves=8\n"), "");
  EXPECT_EQ(NameIn("something else\nrun name=a leaves=8\n"), "");
}

}  // namespace
}  // namespace starring
