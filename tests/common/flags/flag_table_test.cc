#include "common/flags/flag_table.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

enum class Side { kLeft, kRight };
constexpr Choice<Side> kSides[] = {{"left", Side::kLeft}, {"right", Side::kRight}};

struct Inner {
  double real = 0.5;
};
struct Options {
  int number = 1;
  Inner inner;
  Side side = Side::kLeft;
  bool on = false;
  uint64_t seed = 7;
  std::string text;
  std::vector<std::string> list;
  absl::Duration pause = absl::Seconds(3);
  std::optional<int64_t> size = 4;
};
struct OtherOptions {
  int number = 1;
};

constexpr FlagRow kNumber = {"test_number", "numbers",
                             "a number that is the answer to all questions of a long text, which needs two lines",
                             WholeAt<&Options::number>(-5, 20), kSameOnAllRanks};
constexpr FlagRow kReal = {"test_real", "numbers", "a real number",
                           ValueAt<&Options::inner, &Inner::real>(RealAbove(0, 1)), kSameWhenResumed | kPeerTakes};
constexpr FlagRow kChoice = {"test_choice", "rest", "a choice", OneOfAt<kSides, &Options::side>()};
constexpr FlagRow kText = {"test_text", "rest", "a text", TextAt<&Options::text>("file"), kGivenOnAllRanks};

FlagTable Table(std::span<const FlagRow> rows) {
  static const Options defaults;
  return MakeFlagTable("program", "for a test.", rows, &defaults);
}

std::string Complaint(std::span<const FlagRow> rows) { return std::string(CheckFlagTable(Table(rows)).message()); }

TEST(FlagLimitsTest, WholeNumbers) {
  const FlagLimits limits = Whole(-1, 4);
  for (const char* const value : {"-1", "0", "4"}) EXPECT_TRUE(limits.Allow(value)) << value;
  for (const char* const value : {"-2", "5", "18446744073709551615", "-9223372036854775808", "", "x"}) {
    EXPECT_FALSE(limits.Allow(value)) << value;
  }
  EXPECT_FALSE(Whole(1, 4).Allow("0"));
  const FlagLimits any = Whole(0, std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(any.Allow("18446744073709551615"));
  EXPECT_FALSE(any.Allow("-1"));
}

TEST(FlagLimitsTest, AWholeNumberOrAWord) {
  const FlagSlot slot = WholeOrAutoAt<&Options::size>(0, 9);
  EXPECT_EQ(slot.limits.Brief(), "0 to 9, or auto");
  EXPECT_EQ(slot.limits.Sentence(), "it must be a whole number from 0 to 9, or auto");
  Options options;
  EXPECT_EQ(slot.print(&options), "4");
  EXPECT_TRUE(slot.parse("auto", &options));
  EXPECT_EQ(options.size, std::nullopt);
  EXPECT_EQ(slot.print(&options), "auto");
  EXPECT_TRUE(slot.parse("7", &options));
  EXPECT_EQ(options.size, 7);
  EXPECT_FALSE(slot.parse("Auto", &options));
  EXPECT_EQ(options.size, 7);
  for (const char* const value : {"auto", "0", "9"}) EXPECT_TRUE(slot.limits.Allow(value)) << value;
  for (const char* const value : {"-1", "10", "", "aut"}) EXPECT_FALSE(slot.limits.Allow(value)) << value;
  EXPECT_FALSE(Whole(0, 9).Allow("auto"));
  EXPECT_FALSE(Whole(0, 9).Allow(""));
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
  EXPECT_TRUE(kChoice.limits().Allow("right"));
  EXPECT_FALSE(kChoice.limits().Allow("Right"));
  EXPECT_FALSE(kChoice.limits().Allow(""));
  EXPECT_EQ(kChoice.limits().Sentence(), "it must be one of left, right");
}

TEST(FlagLimitsTest, ChoicesHaveValues) {
  constexpr FlagLimits kLimits = OneOf(kSides);
  EXPECT_EQ(kLimits.Brief(), "left, right");
  EXPECT_TRUE(kLimits.Allow("right"));
  EXPECT_FALSE(kLimits.Allow("up"));
  EXPECT_EQ(ValueOf(kSides, std::string("right")), Side::kRight);
  EXPECT_STREQ(NameOf(kSides, Side::kRight), "right");
  EXPECT_DEATH(ValueOf(kSides, "up"), "up");
}

TEST(FlagSlotTest, ReadsAndWritesFieldsOfEveryType) {
  Options options;
  const FlagSlot pause = SecondsAt<&Options::pause>(1, 10), seed = WholeAt<&Options::seed>(0, 20),
                 on = SwitchAt<&Options::on>(), list = TextAt<&Options::list>("names");
  EXPECT_TRUE(pause.parse("8", &options));
  EXPECT_TRUE(seed.parse("9", &options));
  EXPECT_TRUE(on.parse("true", &options));
  EXPECT_TRUE(list.parse("a,b", &options));
  EXPECT_TRUE(kReal.slot.parse("0.25", &options));
  EXPECT_TRUE(kChoice.slot.parse("right", &options));
  EXPECT_EQ(options.pause, absl::Seconds(8));
  EXPECT_EQ(options.seed, 9u);
  EXPECT_TRUE(options.on);
  EXPECT_THAT(options.list, ElementsAre("a", "b"));
  EXPECT_EQ(options.inner.real, 0.25);
  EXPECT_EQ(options.side, Side::kRight);
  Options other;  // a value that does not parse may still change the field
  for (const FlagSlot& slot : {pause, seed, on, kReal.slot, kChoice.slot}) EXPECT_FALSE(slot.parse("x", &other));
  EXPECT_EQ(FlagJson(pause.json, pause.print(&options)), "8");
  EXPECT_EQ(FlagJson(seed.json, seed.print(&options)), "\"9\"");
  EXPECT_EQ(FlagJson(on.json, on.print(&options)), "true");
  EXPECT_EQ(FlagJson(list.json, list.print(&options)), "[\"a\", \"b\"]");
  EXPECT_EQ(FlagJson(kChoice.slot.json, kChoice.slot.print(&options)), "\"right\"");
  EXPECT_EQ(FlagJson(FlagSlot::Json::kText, "a\"b\\c\n"), R"("a\"b\\c\u000a")");
}

TEST(FlagTraitsTest, SayWhatRanksAndResumedRunsMustHaveAlike) {
  const FlagRow rows[] = {kNumber, kReal, kChoice, kText};
  Options options;
  options.number = 4;
  EXPECT_THAT(AgreedFlags(Table(rows), &options), ElementsAre(Pair("test_number", "4"), Pair("test_text", "")));
  EXPECT_THAT(ResumedFlags(Table(rows), &options), ElementsAre(Pair("test_real", "0.5")));
  options.text = "anything";
  EXPECT_THAT(AgreedFlags(Table(rows), &options), ElementsAre(Pair("test_number", "4"), Pair("test_text", "(given)")));
}

TEST(FlagTraitsTest, APathIsNoValueToCompareAndAChangeMayBeSaid) {
  const FlagRow rows[] = {{"test_text", "rest", "a text", TextAt<&Options::text>("file"), kSameContent},
                          {"test_number", "rest", "a number", WholeAt<&Options::number>(-5, 20), kSaidWhenResumed}};
  const Options options;
  EXPECT_THAT(AgreedFlags(Table(rows), &options), testing::IsEmpty());
  EXPECT_THAT(ResumedFlags(Table(rows), &options), testing::IsEmpty());
  EXPECT_THAT(SaidFlags(Table(rows), &options), ElementsAre(Pair("test_number", "1")));
  EXPECT_THAT(FlagsMarkdown(Table(rows)),
              testing::AllOf(HasSubstr("| a text | file | same content | same content |  |\n"),
                             HasSubstr("| a number | -5 to 20 |  | said |  |\n")));
}

TEST(FlagTraitsTest, AResolvedValueIsWhatCounts) {
  const FlagRow rows[] = {{"test_number", "numbers", "a number", WholeAt<&Options::number>(-5, 20), kSameOnAllRanks,
                           WholeAt<&Options::seed>(0, 20)}};
  const Options options;
  EXPECT_THAT(AgreedFlags(Table(rows), &options), ElementsAre(Pair("test_number", "7")));
}

TEST(CheckFlagTableTest, FindsWhatIsTwiceApartOrWrong) {
  const FlagRow whole[] = {kNumber, kReal, kChoice};
  EXPECT_EQ(Complaint(whole), "");
  const FlagRow twice[] = {kNumber, kNumber, kReal, kChoice};
  EXPECT_THAT(Complaint(twice), HasSubstr("two rows for --test_number"));
  const FlagRow apart[] = {kNumber, kChoice, kReal};
  EXPECT_THAT(Complaint(apart), HasSubstr("--test_real is apart"));
  const FlagRow silent[] = {{"test_number", "numbers", "", WholeAt<&Options::number>(-5, 20)}};
  EXPECT_THAT(Complaint(silent), HasSubstr("no meaning of --test_number"));
  const FlagRow narrow[] = {{"test_number", "numbers", "a number", WholeAt<&Options::number>(2, 3)}};
  EXPECT_THAT(Complaint(narrow), HasSubstr("default of --test_number is 1"));
  const FlagRow foreign[] = {{"test_number", "numbers", "a number", WholeAt<&OtherOptions::number>(-5, 20)}};
  EXPECT_THAT(Complaint(foreign), HasSubstr("--test_number is kept in other options"));
}

TEST(FlagsMarkdownTest, HasALineForEveryFlag) {
  const FlagRow rows[] = {kReal, kText};
  EXPECT_EQ(FlagsMarkdown(Table(rows)),
            "<!-- flags: written by bazel run //worker/options:flag_pages -->\n"
            "| flag and default | meaning | limits | ranks | resumed | peer |\n"
            "| --- | --- | --- | --- | --- | --- |\n"
            "| **numbers** | | | | | |\n"
            "| `--test_real=0.5` | a real number | above 0 to 1 |  | same | yes |\n"
            "| **rest** | | | | | |\n"
            "| `--test_text=` | a text | file | all or none |  |  |\n"
            "<!-- end of flags -->");
}

TEST(FlagsJsonTest, HasWhatThePeerNeeds) {
  const FlagRow rows[] = {kReal, kChoice, {"test_hidden", "rest", "a text", TextAt<&Options::text>(""), kNotRecorded}};
  EXPECT_EQ(
      FlagsJson(Table(rows)),
      "{\n"
      "  \"test_real\": {\"type\": \"float\", \"default\": 0.5, \"peer\": true, \"meaning\": \"a real number\"},\n"
      "  \"test_choice\": {\"type\": \"str\", \"choices\": [\"left\", \"right\"], \"default\": \"left\", "
      "\"peer\": false, \"meaning\": \"a choice\"}\n"
      "}\n");
}

// A path is bytes; JSON has to be UTF-8.
TEST(FlagJsonTest, APathThatIsNotUtf8IsSpelledOut) {
  EXPECT_EQ(FlagJson(FlagSlot::Json::kText, "m\xff\"/\xc3\xa4"), "\"m\\\\xff\\\"/\xc3\xa4\"");
}

TEST(HelpTextTest, ShowsEveryFlagWithDefaultMeaningAndLimitsByTopic) {
  const FlagRow rows[] = {kNumber, kReal, kChoice};
  const FlagTable table = Table(rows);
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
