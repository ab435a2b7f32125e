#include "deploy/launch/launch_options.h"

#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/flags/flag_table_checks.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<LaunchOptions> Parse(const std::vector<std::string>& words) {
  // Any program that is there.
  std::vector<const char*> argv = {"launch", "--worker_binary=/bin/true", "--server_binary=/bin/true"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return ParseLaunchOptions(static_cast<int>(argv.size()), argv.data());
}

std::string Refusal(const std::vector<std::string>& words) {
  const auto options = Parse(words);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(options.status().message());
}

std::string File(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path) << text;
  return path;
}

TEST(LaunchOptionsTest, EveryFlagIsInTheTableAndInTheHelp) { ExpectWholeTable(LaunchFlags()); }

TEST(LaunchOptionsTest, AFileHoldsItsFlagsAndThoseOfItsWorkers) {
  const std::string path = File("job.flags", "--workers=3\n--\n--model=mlp\n");
  const auto options = Parse({"--flagfile=" + path, "--", "--epochs=1"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->worker_count, 3);
  EXPECT_THAT(options->worker_flags, ElementsAre("--epochs=1", "--flagfile=" + path));
}

TEST(LaunchOptionsTest, KnowsTheWorkersFlagsInTheirFiles) {
  const std::string path = File("worker.flags", "--checkpoint_dir=/somewhere\n");
  EXPECT_TRUE(Parse({"--restarts=1", "--", "--flagfile=" + path}).ok());
  EXPECT_TRUE(Parse({"--restarts=1", "--", "--flagfile", path}).ok());
  EXPECT_THAT(Refusal({"--restarts=1"}), HasSubstr("--checkpoint_dir"));
  EXPECT_THAT(Refusal({"--", "--flagfile=" + File("rank.flags", "--rank=1\n")}), HasSubstr("--rank is after --"));
  EXPECT_THAT(Refusal({"--flagfile=" + File("both.flags", "--\n--sync=star\n")}), HasSubstr("--sync is after --"));
  EXPECT_EQ(Parse({"--", "--flagfile=/nowhere"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(LaunchOptionsTest, RefusesWhatIsBeyondTheLimits) {
  ExpectWholeNumbersEnd(LaunchFlags(), [](const std::string& word) { return Refusal({word}); });
  EXPECT_THAT(Refusal({"--workers=0"}), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(Refusal({"--servers=257"}), HasSubstr("from 0 to 256"));
  EXPECT_THAT(Refusal({"--metrics_port=65536"}), HasSubstr("from -1 to 65535"));
}

}  // namespace
}  // namespace starring
