#include "common/flags/flag_table.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, test_number, 1, "a number that is the answer to all questions of a long text, which needs two lines");
ABSL_FLAG(double, test_real, 0.5, "a real number");
ABSL_FLAG(std::string, test_choice, "left", "a choice");

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr FlagRow kNumber = {"test_number", "numbers", Whole(-5, 20)};
constexpr FlagRow kReal = {"test_real", "numbers", RealAbove(0, 1)};
constexpr FlagRow kChoice = {"test_choice", "rest", OneOf("left", "right")};

std::string Complaint(std::span<const FlagRow> rows) {
  return std::string(CheckFlagTable({.program = "program", .purpose = "for a test.", .rows = rows}).message());
}

TEST(FlagLimitsTest, WholeNumbers) {
  const FlagLimits limits = Whole(-1, 4);
  for (const char* const value : {"-1", "0", "4"}) EXPECT_TRUE(limits.Allow(value)) << value;
  for (const char* const value : {"-2", "5", "18446744073709551615", "-9223372036854775808", "", "x"}) {
    EXPECT_FALSE(limits.Allow(value)) << value;
  }
  EXPECT_FALSE(Whole(1, 4).Allow("0"));
  EXPECT_TRUE(AnyWhole().Allow("18446744073709551615"));
  EXPECT_FALSE(AnyWhole().Allow("-1"));
}

TEST(FlagLimitsTest, RealNumbers) {
  EXPECT_TRUE(Real(0, 1).Allow("0"));
  EXPECT_TRUE(Real(0, 1).Allow("1"));
  EXPECT_FALSE(Real(0, 1).Allow("-1e-300"));
  EXPECT_FALSE(RealAbove(0, 1).Allow("0"));
  EXPECT_TRUE(RealAbove(0, 1).Allow("1e-300"));
  EXPECT_FALSE(RealBelow(0, 1).Allow("1"));
  for (const char* const value : {"nan", "inf", "-inf", ""}) EXPECT_FALSE(Real(0, 1e6).Allow(value)) << value;
}

TEST(FlagLimitsTest, Choices) {
  EXPECT_TRUE(kChoice.limits.Allow("right"));
  EXPECT_FALSE(kChoice.limits.Allow("Right"));
  EXPECT_FALSE(kChoice.limits.Allow(""));
  EXPECT_EQ(kChoice.limits.Sentence(), "it must be one of left, right");
}

enum class Side { kLeft, kRight };
constexpr Choice<Side> kSides[] = {{"left", Side::kLeft}, {"right", Side::kRight}};

TEST(FlagLimitsTest, ChoicesHaveValues) {
  constexpr FlagLimits kLimits = OneOf(kSides);
  EXPECT_EQ(kLimits.Brief(), "left, right");
  EXPECT_TRUE(kLimits.Allow("right"));
  EXPECT_FALSE(kLimits.Allow("up"));
  EXPECT_EQ(ValueOf(kSides, std::string("right")), Side::kRight);
  EXPECT_STREQ(NameOf(kSides, Side::kRight), "right");
  EXPECT_DEATH(ValueOf(kSides, "up"), "up");
}

TEST(CheckFlagTableTest, FindsWhatIsMissingTwiceOrApart) {
  const FlagRow whole[] = {kNumber, kReal, kChoice};
  EXPECT_EQ(Complaint(whole), "");
  EXPECT_THAT(Complaint(std::span(whole).first(2)), HasSubstr("no row for --test_choice"));
  const FlagRow twice[] = {kNumber, kNumber, kReal, kChoice};
  EXPECT_THAT(Complaint(twice), HasSubstr("two rows for --test_number"));
  const FlagRow apart[] = {kNumber, kChoice, kReal};
  EXPECT_THAT(Complaint(apart), HasSubstr("--test_real is apart"));
  const FlagRow no_flag[] = {kNumber, kReal, kChoice, {"test_nothing", "rest", Switch()}};
  EXPECT_THAT(Complaint(no_flag), HasSubstr("no ABSL_FLAG for the row --test_nothing"));
  const FlagRow narrow[] = {{"test_number", "numbers", Whole(2, 3)}, kReal, kChoice};
  EXPECT_THAT(Complaint(narrow), HasSubstr("default of --test_number is 1"));
  const FlagRow no_switch[] = {{"test_number", "numbers", Switch()}, kReal, kChoice};
  EXPECT_THAT(Complaint(no_switch), HasSubstr("a switch"));
}

TEST(HelpTextTest, ShowsEveryFlagWithDefaultMeaningAndLimitsByTopic) {
  const FlagRow rows[] = {kNumber, kReal, kChoice};
  const FlagTable table = {.program = "program", .purpose = "for a test.", .rows = rows};
  const std::string text = *HelpText(table, "");
  EXPECT_THAT(text, ::testing::StartsWith("program: for a test.\n"));
  EXPECT_THAT(text,
              HasSubstr("\nnumbers\n"
                        "  --test_number=1                 a number that is the answer to all questions of a long "
                        "text, which needs two lines\n"
                        "                                  [-5 to 20]\n"
                        "  --test_real=0.5                 a real number [above 0 to 1]\n"
                        "rest\n"
                        "  --test_choice=left              a choice [left, right]\n"));
  EXPECT_EQ(*HelpText(table, "rest"), "rest\n  --test_choice=left              a choice [left, right]\n");
  EXPECT_THAT(*HelpText(table, "REAL"), Not(HasSubstr("test_choice")));
  EXPECT_THAT(std::string(HelpText(table, "nothing").status().message()), HasSubstr("its topics are numbers, rest"));
}

}  // namespace
}  // namespace starring
