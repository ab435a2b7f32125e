#include "deploy/launch/run_state.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "server/elastic/generation_log.h"

namespace starring {
namespace {

std::string LogIn(const std::string& folder) { return folder + "/generations.log"; }

TEST(RunStateTest, TheNameOfARunThatHasNotEnded) {
  const std::string folder = testing::TempDir() + "/run";
  const std::unique_ptr<GenerationLog> log =
      GenerationLog::Open(folder, {.name = "launch-12ab-0", .leaves = 1, .shards = 1}).value();
  EXPECT_EQ(UnfinishedRun(folder), "launch-12ab-0");
  EXPECT_TRUE(log->Commit({.number = 1, .workers = {7}, .leaf_owners = {0}}).ok());
  EXPECT_EQ(UnfinishedRun(folder), "launch-12ab-0");
  EXPECT_TRUE(log->End(30).ok());
  EXPECT_EQ(UnfinishedRun(folder), "");
  // Its end was cut off.
  std::filesystem::resize_file(LogIn(folder), std::filesystem::file_size(LogIn(folder)) - 1);
  EXPECT_EQ(UnfinishedRun(folder), "launch-12ab-0");
}

// The servers name the damage, and do so only if they are started with the run's name.
TEST(RunStateTest, ADamagedLogStillHasAName) {
  const std::string folder = testing::TempDir() + "/damaged";
  { ASSERT_TRUE(GenerationLog::Open(folder, {.name = "a run", .leaves = 1, .shards = 1}).value()->Prepare(1).ok()); }
  std::fstream file(LogIn(folder), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  EXPECT_EQ(UnfinishedRun(folder), "a run");
}

TEST(RunStateTest, NoRun) {
  EXPECT_EQ(UnfinishedRun("/nowhere"), "");
  const std::string folder = testing::TempDir() + "/none";
  std::filesystem::create_directory(folder);
  for (const char* const log : {"", "starring-gen", "run name=launch-12ab-0 leaves=8 shards=2\n", "something else"}) {
    std::ofstream(LogIn(folder)) << log;
    EXPECT_EQ(UnfinishedRun(folder), "") << log;
  }
}

}  // namespace
}  // namespace starring
