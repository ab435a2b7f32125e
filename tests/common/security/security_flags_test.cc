#include "common/security/security_flags.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/flags/command_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

struct Options {
  SecurityFiles files;
};

constexpr auto& kRows = kSecurityRows<&Options::files>;

const FlagTable& Table() {
  static const Options defaults;
  static const FlagTable table = MakeFlagTable("program", "for a test.", kRows, &defaults);
  return table;
}

// The options with row i set where bit i of `rows` is set, each to a value of its own.
Options OptionsOf(unsigned rows) {
  Options options;
  for (size_t i = 0; i < kRows.size(); ++i) {
    if ((rows >> i & 1) == 0) continue;
    const FlagRow& row = kRows[i];
    const std::string value =
        row.limits().kind == FlagLimits::Kind::kSwitch ? "true" : absl::StrCat("/a folder/", row.name, "=");
    EXPECT_TRUE(row.slot.parse(value, &options)) << row.name;
  }
  return options;
}

constexpr unsigned kAllRows = (1u << kRows.size()) - 1;

TEST(SecurityFlagWordsTest, TheWordsGiveAnotherProcessTheSameFiles) {
  for (unsigned rows = 0; rows <= kAllRows; ++rows) {
    SCOPED_TRACE(testing::Message() << "rows " << rows);
    const Options given = OptionsOf(rows);
    const std::vector<std::string> words = SecurityFlagWords(given.files);
    std::vector<const char*> argv = {"program"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    Options read;
    const auto parsed = ParseFlags(static_cast<int>(argv.size()), argv.data(), Table(), &read);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    for (const FlagRow& row : kRows) EXPECT_EQ(row.slot.print(&read), row.slot.print(&given)) << row.name;
  }
}

// A row without a word would be a flag that the launcher takes and does not pass on.
TEST(SecurityFlagWordsTest, EveryRowHasAWord) {
  const std::vector<std::string> words = SecurityFlagWords(OptionsOf(kAllRows).files);
  EXPECT_EQ(words.size(), kRows.size());
  for (const FlagRow& row : kRows) {
    const std::string name = absl::StrCat("--", row.name);
    EXPECT_EQ(
        std::count_if(words.begin(), words.end(),
                      [&](const std::string& word) { return word == name || absl::StartsWith(word, name + "="); }),
        1)
        << name;
  }
}

TEST(RefuseSiteCertificatesTest, RefusesTheirRowsAlone) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    const absl::Status status = RefuseSiteCertificates(OptionsOf(1u << i).files);
    if (kRows[i].name == "job_secret" || kRows[i].name == "tls") {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(absl::StrCat("flag --", kRows[i].name)));
  }
}

TEST(SecurityFlagWordsTest, NothingGivenMakesNoWords) {
  EXPECT_THAT(SecurityFlagWords(SecurityFiles()), testing::IsEmpty());
}

}  // namespace
}  // namespace starring
