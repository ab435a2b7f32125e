#include "common/command_line.h"

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, test_number, 1, "");
ABSL_FLAG(bool, test_switch, false, "");

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::set<std::string>> Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "program");
  return ParseFlags(static_cast<int>(words.size()), words.data());
}

std::string Refusal(const std::vector<const char*>& words) {
  const absl::Status status = Parse(words).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ParseFlagsTest, TakesEveryWayToWriteAFlag) {
  EXPECT_THAT(*Parse({"--test_number=7", "--test_switch"}), ElementsAre("test_number", "test_switch"));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 7);
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
  EXPECT_THAT(*Parse({"--test_number", "-3", "--notest_switch"}), ElementsAre("test_number", "test_switch"));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), -3);
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_switch));
}

TEST(ParseFlagsTest, RefusesAnUnknownFlagAndNamesTheNearest) {
  EXPECT_THAT(Refusal({"--test_numbr=7"}), HasSubstr("unknown flag --test_numbr, did you mean --test_number?"));
}

TEST(ParseFlagsTest, RefusesWhatItCannotRead) {
  EXPECT_THAT(Refusal({"--test_number=seven"}), HasSubstr("flag --test_number cannot be \"seven\""));
  EXPECT_THAT(Refusal({"--test_number"}), HasSubstr("has no value"));
  EXPECT_THAT(Refusal({"--test_number=1", "--test_number=2"}), HasSubstr("given twice"));
  EXPECT_THAT(Refusal({"stray"}), HasSubstr("unexpected word \"stray\""));
}

TEST(ExitCodeTest, TellsARefusalFromAFailureFromAMissingPeer) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCode(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCode(absl::DataLossError("")), 2);
  EXPECT_EQ(ExitCode(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCode(absl::DeadlineExceededError("")), 3);
}

}  // namespace
}  // namespace starring
