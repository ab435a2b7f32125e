// What holds for the table of flags of every program.
#ifndef STARRING_TESTS_COMMON_FLAGS_FLAG_TABLE_CHECKS_H_
#define STARRING_TESTS_COMMON_FLAGS_FLAG_TABLE_CHECKS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/flags/flag_table.h"
#include "gtest/gtest.h"

namespace starring {

// Every flag of the process has its row, and --help shows it on two screens of 120 columns.
inline void ExpectWholeTable(const FlagTable& table) {
  EXPECT_TRUE(CheckFlagTable(table).ok()) << CheckFlagTable(table);
  const std::string help = *HelpText(table, "");
  for (const FlagRow& row : table.rows) EXPECT_TRUE(absl::StrContains(help, absl::StrCat("  --", row.name, "=")));
  EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 110);
  for (const absl::string_view line : absl::StrSplit(help, '\n')) EXPECT_LE(line.size(), 120u) << line;
}

// Each flag of `most` takes that number and none above. Every other flag with a whole number is one of `unbounded`.
inline void ExpectLargest(const FlagTable& table, const std::map<absl::string_view, int64_t>& most,
                          const std::set<absl::string_view>& unbounded) {
  for (const FlagRow& row : table.rows) {
    const auto found = most.find(row.name);
    const bool is_whole = row.limits.kind == FlagLimits::Kind::kWhole;
    EXPECT_EQ(found != most.end() || unbounded.contains(row.name), is_whole) << row.name;
    if (found == most.end()) continue;
    EXPECT_TRUE(row.limits.Allow(absl::StrCat(found->second))) << row.name;
    EXPECT_FALSE(row.limits.Allow(absl::StrCat(found->second + 1))) << row.name;
  }
}

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_FLAGS_FLAG_TABLE_CHECKS_H_
