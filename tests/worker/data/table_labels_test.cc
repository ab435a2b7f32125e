#include "worker/data/table_labels.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/checkpoint/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Texts = std::vector<std::string>;

absl::StatusOr<TrainAndTest> Sets(const Texts& train, const Texts& test) {
  TableLabels labels;
  TrainAndTest sets;
  for (const std::string& text : train) sets.train.labels.push_back(labels.Add(text).value());
  for (const std::string& text : test) sets.test.labels.push_back(labels.Add(text).value());
  const absl::Status status = labels.Finish(sets);
  if (!status.ok()) return status;
  return sets;
}

TEST(TableLabelsTest, IntegersAreTheClasses) {
  const TrainAndTest sets = Sets({"3", "1.0", "0"}, {"1e0", "+1", "-0", "4"}).value();
  EXPECT_THAT(sets.train.labels, ElementsAre(3, 1, 0));
  EXPECT_THAT(sets.test.labels, ElementsAre(1, 1, 0, 4));
  EXPECT_THAT(sets.class_names, IsEmpty());
  EXPECT_EQ(sets.train.classes, 5);
  EXPECT_EQ(sets.test.classes, 5);
  EXPECT_EQ(sets.test.labels_crc32c, ExtendCrc32cByTable(0, std::as_bytes(std::span(sets.test.labels))));
  EXPECT_EQ(sets.train.labels_crc32c, ExtendCrc32cByTable(0, std::as_bytes(std::span(sets.train.labels))));
  EXPECT_EQ(Sets({"65535"}, {})->train.classes, 65536);
}

TEST(TableLabelsTest, OtherNumbersAreClassesByValue) {
  const TrainAndTest signs = Sets({"+1", "-1", "1.0"}, {"-1.0", "1"}).value();
  EXPECT_THAT(signs.train.labels, ElementsAre(1, 0, 1));
  EXPECT_THAT(signs.test.labels, ElementsAre(0, 1));
  EXPECT_THAT(signs.class_names, ElementsAre("-1", "+1"));
  EXPECT_EQ(signs.test.classes, 2);
  // 10 comes after 9 by value, before by bytes. The test set alone has a class in between.
  const TrainAndTest sets = Sets({"10", "9"}, {"9.5", "70000"}).value();
  EXPECT_THAT(sets.train.labels, ElementsAre(2, 0));
  EXPECT_THAT(sets.test.labels, ElementsAre(1, 3));
  EXPECT_THAT(sets.class_names, ElementsAre("9", "9.5", "10", "70000"));
}

TEST(TableLabelsTest, TextsAreClassesByBytes) {
  const TrainAndTest sets = Sets({"virginica", "Setosa", "10"}, {"9", "\xc3\xa9t\xc3\xa9", "virginica"}).value();
  EXPECT_THAT(sets.class_names, ElementsAre("10", "9", "Setosa", "virginica", "\xc3\xa9t\xc3\xa9"));
  EXPECT_THAT(sets.train.labels, ElementsAre(3, 2, 0));
  EXPECT_THAT(sets.test.labels, ElementsAre(1, 4, 3));
  EXPECT_EQ(sets.train.classes, 5);
}

TEST(TableLabelsTest, ASetMayHaveNone) {
  Dataset set{.count = 2};
  LeaveLabelsOut(set);
  EXPECT_FALSE(set.has_labels);
  EXPECT_EQ(set.outputs(), 1);
  EXPECT_EQ(set.labels, std::vector<uint16_t>(2));
}

TEST(TableLabelsTest, KnowsWhatWasAdded) {
  TableLabels labels;
  EXPECT_EQ(labels.Add("a").value(), 0);
  EXPECT_EQ(labels.Add("b").value(), 1);
  EXPECT_EQ(labels.Add("a").value(), 0);
  EXPECT_TRUE(labels.Contains("b"));
  EXPECT_FALSE(labels.Contains("c"));
}

TEST(TableLabelsTest, RefusesWhatIsNoLabel) {
  TableLabels labels;
  EXPECT_EQ(labels.Add("").status(), absl::DataLossError("expected a label, found an empty cell"));
  EXPECT_EQ(labels.Add("NaN").status(), absl::DataLossError("expected a label, found \"NaN\""));
  EXPECT_EQ(labels.Add("-inf").status(), absl::DataLossError("expected a label, found \"-inf\""));
  EXPECT_TRUE(labels.Add(std::string(256, 'x')).ok());
  EXPECT_THAT(std::string(labels.Add(std::string(257, 'x')).status().message()),
              HasSubstr("expected a label of at most 256 bytes, found 257: \"xxx"));
}

// A checkpoint has the labels, as UTF-8 and of a bounded length.
TEST(TableLabelsTest, RefusesWhatACheckpointCannotHave) {
  TableLabels labels;
  EXPECT_EQ(labels.Add("ros\xe9").status(),
            absl::DataLossError("expected a label in UTF-8, found \"ros\\xe9\": save the file as UTF-8"));
  EXPECT_TRUE(labels.Add("ros\xc3\xa9").ok());
  absl::Status status;
  for (int i = 0; i < 20000 && status.ok(); ++i) status = labels.Add(absl::StrCat(std::string(240, 'a'), i)).status();
  EXPECT_EQ(status, absl::InvalidArgumentError("the distinct labels have more than 4194304 bytes: give shorter ones"));
}

TEST(TableLabelsTest, NumbersStayNumbers) {
  TableLabels labels({.numbers = true});
  TrainAndTest sets;
  for (const char* const text : {"1.5", "-2", "1e3"}) CHECK_OK(labels.Append("file", text, sets.train));
  CHECK_OK(labels.Append("file", "7", sets.test));
  for (const char* const text : {"", "no", "nan", "1e39"}) {
    EXPECT_EQ(labels.Append("file", text, sets.test).code(), absl::StatusCode::kDataLoss) << text;
  }
  ASSERT_TRUE(labels.Finish(sets).ok());
  EXPECT_EQ(sets.train.target, TargetType::kNumbers);
  EXPECT_EQ(sets.train.outputs(), 1);
  EXPECT_EQ(sets.train.count, 3);
  EXPECT_EQ(sets.train.targets, (std::vector<float>{1.5f, -2, 1000}));
  EXPECT_EQ(sets.test.targets, std::vector<float>{7});
  EXPECT_NE(sets.train.labels_crc32c, sets.test.labels_crc32c);
  EXPECT_TRUE(sets.class_names.empty());
}

TEST(TableLabelsTest, RefusesATargetOfRegression) {
  Texts thousand;
  for (int i = 0; i < 4000; ++i) thousand.push_back(absl::StrCat(i % 1000, ".5"));
  EXPECT_EQ(Sets(thousand, {})->train.classes, 1000);
  EXPECT_EQ(Sets(thousand, {"0.50"})->train.classes, 1000);
  EXPECT_EQ(Sets(thousand, {"7"}).status(),
            absl::InvalidArgumentError(
                "the labels are 1001 distinct numbers, not all of them integers, expected at most 1000: this looks "
                "like a target of regression: give a layer file, as --model=FILE, with the line loss { mse {} } (in "
                "Python target=\"numbers\"), or classes, of which one or more is a word or all are integers"));
  // Integers may be more.
  Texts negative;
  for (int i = 0; i < 65536; ++i) negative.push_back(absl::StrCat(-i));
  EXPECT_EQ(Sets(negative, {})->train.labels[65535], 0);
  EXPECT_EQ(Sets(negative, {})->train.labels[0], 65535);
  TableLabels labels;
  for (const std::string& text : negative) CHECK_OK(labels.Add(text));
  EXPECT_EQ(
      labels.Add("1").status(),
      absl::InvalidArgumentError("the labels are more than 65536 distinct texts, expected at most 65536: this "
                                 "looks like a target of regression: give a layer file, as --model=FILE, with the "
                                 "line loss { mse {} } (in Python target=\"numbers\"), or classes, of which one or "
                                 "more is a word or all are integers"));
  EXPECT_TRUE(labels.Add("-7").ok());
}

// Seen: a column of prices, 600 in 600 samples, became 600 classes.
TEST(TableLabelsTest, RefusesFractionsThatHardlyRepeat) {
  Texts prices, codes, grades;
  for (int i = 0; i < 600; ++i) {
    prices.push_back(absl::StrCat(i, ".", i % 10));
    codes.push_back(absl::StrCat(i));
    grades.push_back(absl::StrCat(i % 33, ".5"));
  }
  EXPECT_THAT(std::string(Sets(prices, {}).status().message()),
              HasSubstr("the labels are 600 distinct numbers, not all of them integers, of 600 samples, expected 4 or "
                        "more samples of each: this looks like a target of regression: give a layer file"));
  // Neither integers nor words are, however many there are.
  EXPECT_EQ(Sets(codes, {})->train.classes, 600);
  codes.push_back("-1");
  EXPECT_EQ(Sets(codes, {})->train.classes, 601);
  prices.push_back("unknown");
  EXPECT_EQ(Sets(prices, {})->train.classes, 601);
  // Nor are fractions that repeat, or that are few.
  EXPECT_EQ(Sets(grades, {})->train.classes, 33);
  grades.resize(32);
  EXPECT_EQ(Sets(grades, {})->train.classes, 32);
  // The samples of a prediction may be few.
  prices.pop_back();
  TableLabels few({.may_be_rare = true});
  for (const std::string& text : prices) CHECK_OK(few.Add(text));
  TrainAndTest sets;
  EXPECT_TRUE(few.Finish(sets).ok());
}

TEST(TableLabelsTest, KnowsNumbersWithAFraction) {
  EXPECT_TRUE(HaveFraction({"1", "2.5"}));
  EXPECT_FALSE(HaveFraction({"1", "2.0", "1e3", "-7"}));
  EXPECT_FALSE(HaveFraction({"2.5", "b"}));
  EXPECT_FALSE(HaveFraction({}));
}

}  // namespace
}  // namespace starring
