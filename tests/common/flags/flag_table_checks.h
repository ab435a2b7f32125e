// Checks that hold for the table of flags of every program.
#ifndef STARRING_TESTS_COMMON_FLAGS_FLAG_TABLE_CHECKS_H_
#define STARRING_TESTS_COMMON_FLAGS_FLAG_TABLE_CHECKS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/flags/flag_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {

// The table has no contradiction, and --help shows every flag in at most 160 lines of 120 columns: two screens of 80
// lines. A program with more flags than that is hard to learn.
inline void ExpectWholeTable(const FlagTable& table) {
  EXPECT_TRUE(CheckFlagTable(table).ok()) << CheckFlagTable(table);
  const std::string help = *HelpText(table, "");
  for (const FlagRow& row : table.rows) EXPECT_TRUE(absl::StrContains(help, absl::StrCat("  --", row.name, "=")));
  EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 160);
  for (const absl::string_view line : absl::StrSplit(help, '\n')) EXPECT_LE(line.size(), 120u) << line;
}

// A whole number that is just above or just below its flag's limits is refused, and the message has the limits. `parse`
// reads a command line of that one flag and returns the message of its status.
inline void ExpectWholeNumbersEnd(const FlagTable& table, const std::function<std::string(const std::string&)>& parse) {
  for (const FlagRow& row : table.rows) {
    const FlagLimits& limits = row.limits();
    if (limits.kind != FlagLimits::Kind::kWhole) continue;
    const std::string above =
        limits.most == std::numeric_limits<uint64_t>::max() ? "18446744073709551616" : absl::StrCat(limits.most + 1);
    for (const std::string& value : {absl::StrCat(limits.least - 1), above}) {
      EXPECT_THAT(parse(absl::StrCat("--", row.name, "=", value)), testing::HasSubstr(limits.Sentence())) << row.name;
    }
  }
}

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_FLAGS_FLAG_TABLE_CHECKS_H_
