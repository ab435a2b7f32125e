// ReadCsv and ReadLibsvm.
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/checkpoint/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"
#include "worker/data/dataset_readers.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<float> Numbers(const Dataset& set) {
  std::vector<float> numbers(set.images.size() / sizeof(float));
  std::memcpy(numbers.data(), set.images.data(), set.images.size());
  return numbers;
}

void ExpectWhole(const Dataset& set) {
  EXPECT_EQ(set.type, FieldType::kNumbers);
  EXPECT_EQ(set.count, std::ssize(set.labels));
  EXPECT_EQ(set.height, 1);
  EXPECT_EQ(set.width, 1);
  EXPECT_EQ(set.count * set.channels * 4, std::ssize(set.images));
  EXPECT_EQ(set.images_crc32c, ExtendCrc32cByTable(0, std::as_bytes(std::span(set.images))));
  EXPECT_EQ(set.labels_crc32c, ExtendCrc32cByTable(0, std::as_bytes(std::span(set.labels))));
}

class CsvReaderTest : public ::testing::Test {
 protected:
  absl::StatusOr<TrainAndTest> Read(std::string_view train, std::string_view test = "", const std::string& label = "") {
    return ReadCsv({.train = WriteFile(folder_, "train.csv", train),
                    .test = test.empty() ? "" : WriteFile(folder_, "test.csv", test),
                    .label = label});
  }
  std::string Refusal(std::string_view train, std::string_view test = "", const std::string& label = "") {
    const auto sets = Read(train, test, label);
    EXPECT_EQ(sets.status().code(), absl::StatusCode::kDataLoss) << sets.status();
    return std::string(sets.status().message());
  }
  std::string LabelRefusal(std::string_view train, const std::string& label) {
    const auto sets = Read(train, "", label);
    EXPECT_EQ(sets.status().code(), absl::StatusCode::kInvalidArgument) << sets.status();
    return std::string(sets.status().message());
  }

  const std::string folder_ = MakeFolder("csv_reader");
};

TEST_F(CsvReaderTest, ColumnsBesideTheLabelAreChannels) {
  const std::string train = "a,label, b\n1,0,-2.5\n+3e0,2, .25\t\n", test = "a,label,b\r\n7,1,8\r\n\r\n\n";
  for (const bool zipped : {false, true}) {
    const auto sets = zipped ? Read(Gzip(train), Gzip(test)) : Read(train, test);
    ASSERT_TRUE(sets.ok()) << sets.status();
    ExpectWhole(sets->train);
    ExpectWhole(sets->test);
    EXPECT_EQ(sets->train.channels, 2);
    EXPECT_THAT(Numbers(sets->train), ElementsAre(1, -2.5, 3, 0.25));
    EXPECT_THAT(sets->train.labels, ElementsAre(0, 2));
    EXPECT_THAT(Numbers(sets->test), ElementsAre(7, 8));
    EXPECT_THAT(sets->test.labels, ElementsAre(1));
    EXPECT_EQ(sets->train.classes, 3);
    EXPECT_EQ(sets->test.classes, 3);
    EXPECT_THAT(sets->class_names, IsEmpty());
  }
}

TEST_F(CsvReaderTest, WithoutATestFileTheTestSetIsEmpty) {
  const auto sets = Read("y,x\n1,2\n");
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_EQ(sets->train.count, 1);
  EXPECT_EQ(sets->test.count, 0);
}

TEST_F(CsvReaderTest, TheLabelColumnHasANameOrANumber) {
  for (const char* const name : {"label", "target", "class", "y"}) {
    EXPECT_THAT(Numbers(Read(absl::StrCat("a,", name, ",b\n1,2,3\n"))->train), ElementsAre(1, 3));
  }
  EXPECT_THAT(Numbers(Read("a,b,c\n1,2,3\n", "", "a")->train), ElementsAre(2, 3));
  EXPECT_THAT(Numbers(Read("a,b,c\n1,2,3\n", "", "3")->train), ElementsAre(1, 2));
  EXPECT_THAT(Numbers(Read("1,2,3\n", "", "1")->train), ElementsAre(2, 3));
  // A name counts before a number, and what is asked for before the usual names.
  EXPECT_THAT(Numbers(Read("0,1,label\n7,8,9\n", "", "1")->train), ElementsAre(7, 9));
  EXPECT_THAT(Numbers(Read("\"the \"\"x\"\"\",label\n7,8\n", "", "the \"x\"")->train), ElementsAre(8));
}

TEST_F(CsvReaderTest, RefusesAnUnknownLabelColumn) {
  EXPECT_THAT(LabelRefusal("a,b,c\n1,2,3\n", ""),
              EndsWith("/train.csv has 0 columns called label, target, class or y, expected one: give "
                       "--csv_label=NAME|NUMBER, with numbers from 1 on; it has the columns \"a\", \"b\", \"c\""));
  EXPECT_THAT(LabelRefusal("y,b,label\n1,2,3\n", ""), HasSubstr("has 2 columns called label, target, class or y"));
  EXPECT_THAT(LabelRefusal("1,2,3,4,5,6,7,8,9,10,11,13\n", ""),
              HasSubstr("it has no header, and the first line \"1\", \"2\", \"3\", \"4\", \"5\", \"6\", \"7\", \"8\", "
                        "\"9\", \"10\" and 2 more"));
  const std::string wanted =
      "expected one: --csv_label needs a name, or a number from 1 to 3; it has the columns \"a\"";
  EXPECT_THAT(LabelRefusal("a,b,c\n1,2,3\n", "Label"), HasSubstr("has 0 columns called \"Label\", " + wanted));
  EXPECT_THAT(LabelRefusal("a,b,c\n1,2,3\n", "0"), HasSubstr("has 0 columns called \"0\", " + wanted));
  EXPECT_THAT(LabelRefusal("a,b,c\n1,2,3\n", "4"), HasSubstr("has 0 columns called \"4\", " + wanted));
  EXPECT_THAT(LabelRefusal("a,b,a\n1,2,3\n", "a"), HasSubstr("has 2 columns called \"a\", " + wanted));
}

TEST_F(CsvReaderTest, BothFilesHaveOneHeaderOrNone) {
  EXPECT_THAT(
      Refusal("a,b,y\n1,2,3\n", "a,y,b\n1,2,3\n"),
      HasSubstr("/test.csv, line 1: expected the header of " + folder_ +
                "/train.csv, \"b\", \"y\", found \"y\", \"b\" from column 2 on: write the same columns into both"));
  EXPECT_THAT(Refusal("a,b,y\n1,2,3\n", "1,2,3\n"), HasSubstr("found none from column 1 on"));
  EXPECT_THAT(Refusal("a,b,y\n1,2,3\n", "a,b\n1,2\n"), HasSubstr("/train.csv, \"y\", found none from column 3 on"));
  const auto no_header = Read("1,2\n3,4\n", "a,b\n1,2\n", "1");
  EXPECT_THAT(std::string(no_header.status().message()),
              HasSubstr("/train.csv, none, found \"a\", \"b\" from column 1"));
  EXPECT_TRUE(Read("1,2\n3,4\n", "5,6\n", "1").ok());
}

// A header that is a sample would be one sample fewer, without a word.
TEST_F(CsvReaderTest, RefusesAHeaderThatIsASample) {
  const auto sets = Read("5.1,3.5,setosa\n4.9,3.0,setosa\n", "", "3");
  EXPECT_EQ(sets.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(sets.status().message()),
              EndsWith("/train.csv, line 1: expected a header, because \"setosa\" is text, found cells that are "
                       "no names and a label that other rows have: write a header into the first line"));
  // A first sample that lacks a value, too.
  EXPECT_THAT(Refusal("5.1,?,setosa\n4.9,3.0,setosa\n", "", "3"), HasSubstr("line 1: expected a header"));
  EXPECT_TRUE(Read("0,1,kind\n4.9,3.0,setosa\n", "", "3").ok());
  // One of the classes may have the column's name.
  EXPECT_EQ(Read("x,y\n1,y\n2,n\n")->train.count, 2);
}

TEST_F(CsvReaderTest, RefusesHeadersThatPandasWrites) {
  EXPECT_THAT(Refusal(",a,b,label\n0,1,2,0\n"),
              EndsWith("/train.csv, line 1, column 1: expected a name, found an empty cell: name the column, or leave "
                       "it out (pandas writes row numbers there: to_csv(..., index=False))"));
  for (const std::string line : {"0,1,2,3", "1,2,3,4"}) {
    EXPECT_THAT(Refusal(line + "\n5,6,7,0\n", "", "4"), HasSubstr("give the columns names, or leave the line out"));
  }
  // So few numbers may be a sample's.
  EXPECT_TRUE(Read("0,1,2\n5,6,0\n", "", "3").ok());
  EXPECT_TRUE(Read("0,1,2,4\n5,6,0,1\n", "", "4").ok());
}

TEST_F(CsvReaderTest, RefusesCellsThatAreNoNumbers) {
  const auto cell = [&](const std::string& text) { return Refusal("a,petal width,y\n1,2,0\n1," + text + ",1\n"); };
  const std::string place = "/train.csv, line 3, column 2 (\"petal width\"): expected a number, found ";
  EXPECT_THAT(cell(""), EndsWith(place + "\"\", which is an empty cell: fill it, or leave out the row"));
  EXPECT_THAT(cell(" "), EndsWith(place + "\"\", which is an empty cell: fill it, or leave out the row"));
  EXPECT_THAT(cell("nan"), EndsWith(place + "\"nan\", which is not finite: replace it, or leave out the row"));
  EXPECT_THAT(cell("-inf"), EndsWith(place + "\"-inf\", which is not finite: replace it, or leave out the row"));
  EXPECT_THAT(cell("1e39"), EndsWith(place + "\"1e39\", which is beyond float32, 3.4e38: scale the column"));
  EXPECT_THAT(cell("red\x01"), EndsWith(place + "\"red\\x01\": write numbers, or leave out the column"));
  // Nor do missing numbers make a header of the first line.
  const auto missing = Read("1,,3\n1,2,3\n", "", "1");
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/train.csv, line 1, column 2: expected a number"));
  const auto nan = Read("1,nan,3\n", "", "1");
  EXPECT_THAT(std::string(nan.status().message()), HasSubstr("line 1, column 2: expected a number, found \"nan\""));
}

TEST_F(CsvReaderTest, RefusesRowsOfAnotherLength) {
  EXPECT_THAT(Refusal("a,b,y\n1,2,0\n\n1,2,0\n"),
              EndsWith("/train.csv, line 3: found an empty line before line 4, expected a row: remove the empty line"));
  EXPECT_THAT(Refusal("\na,y\n1,2\n"), HasSubstr("/train.csv, line 1: found an empty line before line 2"));
  EXPECT_THAT(Refusal("a,b,y\n1,2,0\n1,2\n"), EndsWith("/train.csv, line 3: expected 3 cells as in line 1 of " +
                                                       folder_ + "/train.csv, found 2: mend or remove the row"));
  EXPECT_THAT(Refusal("a,y\n1,2\n", "a,y\n1,2,3\n"), HasSubstr("/test.csv, line 2: expected 2 cells as in line 1 of"));
  EXPECT_THAT(Refusal("y\n1\n2\n"), HasSubstr("/train.csv, line 1: expected a label and one column of numbers or more, "
                                              "with commas between them, found one cell: \"y\""));
  EXPECT_THAT(Refusal("a;b;y\n1;2;3\n"), HasSubstr("found one cell: \"a;b;y\""));
}

TEST_F(CsvReaderTest, RefusesAFileWithoutSamples) {
  for (const char* const text : {"", "\n\n", "a,y\n", "a,y\n\n"}) {
    EXPECT_THAT(Refusal(text), EndsWith("/train.csv has no samples: expected one row or more")) << text;
  }
  EXPECT_THAT(Refusal("a,y\n1,2\n", "a,y\n"), EndsWith("/test.csv has no samples: expected one row or more"));
  EXPECT_THAT(Refusal("<html><body>\n404, Not Found\n"), HasSubstr("/train.csv is a web page"));
  EXPECT_THAT(Refusal("a,y\n1,\"2"), HasSubstr("/train.csv, line 2, column 2: expected a closing quote"));
  EXPECT_EQ(ReadCsv({.train = folder_ + "/none"}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CsvReaderTest, BothSetsShareTheirClasses) {
  const auto sets = Read("y,x\n 'b ,1\n\"c,\"\"d\",2\n", "y,x\na,3\n\"'b\",4\n");
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_THAT(sets->class_names, ElementsAre("'b", "a", "c,\"d"));
  EXPECT_THAT(sets->train.labels, ElementsAre(0, 2));
  EXPECT_THAT(sets->test.labels, ElementsAre(1, 0));
  EXPECT_EQ(sets->test.classes, 3);
  ExpectWhole(sets->test);
}

TEST_F(CsvReaderTest, RefusesLabels) {
  EXPECT_THAT(Refusal("x,y\n1,2\n3,\n"), EndsWith("/train.csv, line 3, column 2 (\"y\"): expected a label, found an "
                                                  "empty cell"));
  EXPECT_THAT(Refusal("x,y\n1,2\n", "x,y\n3,nan\n"),
              EndsWith("/test.csv, line 2, column 2 (\"y\"): expected a label, found \"nan\""));
  std::string table = "x,y\n";
  for (int i = 0; i < 1001; ++i) absl::StrAppend(&table, i, ",", i, ".5\n");
  EXPECT_THAT(LabelRefusal(table, ""), HasSubstr("/train.csv: the labels are 1001 distinct numbers, not all of them "
                                                 "integers, expected at most 1000: this looks like a target of "
                                                 "regression: give a layer file, as --model=FILE, with the line loss "
                                                 "{ mse {} }"));
}

TEST_F(CsvReaderTest, StopsAtTheLimitOfBytes) {
  const std::string path = WriteFile(folder_, "limit.csv", "1,2,3\n4,5,6\n");
  EXPECT_TRUE(ReadCsv({.train = path, .label = "1", .bytes_max = 16}).ok());
  const auto sets = ReadCsv({.train = path, .label = "1", .bytes_max = 15});
  EXPECT_EQ(sets.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(sets.status().message()),
              EndsWith("/limit.csv has more samples than the limits of 4294967295 samples and 15 bytes of float32: use "
                       "fewer"));
  EXPECT_EQ(TableFiles().bytes_max, int64_t{16} << 30);
}

TEST_F(CsvReaderTest, ReadsManyRowsAndColumns) {
  std::string table;
  for (int i = 0; i < 30000; ++i) absl::StrAppend(&table, i, ",", i % 7, ",", -i, ".5\n");
  const auto sets = Read(table, "", "2");
  ASSERT_TRUE(sets.ok()) << sets.status();
  ExpectWhole(sets->train);
  const std::vector<float> numbers = Numbers(sets->train);
  ASSERT_EQ(numbers.size(), 60000u);
  for (int i = 0; i < 30000; ++i) {
    ASSERT_EQ(numbers[2 * i], i);
    ASSERT_EQ(numbers[2 * i + 1], i == 0 ? 0.5f : static_cast<float>(-i) - 0.5f);
    ASSERT_EQ(sets->train.labels[i], i % 7);
  }
  std::string wide = "7";
  for (int i = 0; i < 65536; ++i) wide += ",1";
  EXPECT_EQ(Read(wide, "", "1")->train.channels, 65536);
  EXPECT_THAT(std::string(Read(wide + ",1", "", "1").status().message()), HasSubstr("more than 65537 cells"));
}

TEST_F(CsvReaderTest, APredictionNeedsNoLabels) {
  // The model has two columns.
  const auto read = [&](std::string_view text, const std::string& label = "") {
    return ReadCsv(
        {.train = WriteFile(folder_, "new.csv", text), .label = label, .columns_min = 2, .may_lack_labels = true});
  };
  const auto expect_none = [](const absl::StatusOr<TrainAndTest>& sets) {
    ASSERT_TRUE(sets.ok()) << sets.status();
    EXPECT_FALSE(sets->train.has_labels);
    EXPECT_EQ(sets->train.channels, 2);
    EXPECT_EQ(sets->train.classes, 1);
    EXPECT_THAT(Numbers(sets->train), ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(sets->train.labels, ElementsAre(0, 0));
  };
  expect_none(read("1,2\n3,4\n"));
  expect_none(read("1,2\n3,4\n", "1"));
  expect_none(read("a,b\n1,2\n3,4\n"));
  expect_none(read("a,b\n1,2\n3,4\n", "kind"));
  expect_none(read("a,y\n1,2\n3,4\n"));  // a model of points has the columns x and y
  // A column whose name was given has labels: its numbers are none of the model's.
  const auto named = read("a,y\n1,2\n3,4\n", "y");
  EXPECT_TRUE(named->train.has_labels);
  EXPECT_EQ(named->train.channels, 1);
  EXPECT_THAT(named->train.labels, ElementsAre(2, 4));
  const auto labelled = read("a,b,kind\n1,2,x\n3,4,y\n", "kind");
  EXPECT_TRUE(labelled->train.has_labels);
  EXPECT_THAT(labelled->class_names, ElementsAre("x", "y"));
  EXPECT_THAT(std::string(read("a,b,c\n1,2,3\n").status().message()),
              HasSubstr("0 columns called label, target, class or y, expected one: give --csv_label=NAME|NUMBER, with "
                        "numbers from 1 on; it has the columns \"a\", \"b\", \"c\"; a file without labels has the 2 "
                        "columns of the model"));
  EXPECT_THAT(LabelRefusal("a,b\n1,2\n", ""), EndsWith("it has the columns \"a\", \"b\""));
}

TEST_F(CsvReaderTest, AModelMayHaveOneColumn) {
  const TableFiles files{
      .train = WriteFile(folder_, "new.csv", "a\n1\n3\n"), .columns_min = 1, .may_lack_labels = true};
  EXPECT_THAT(Numbers(ReadCsv(files)->train), ElementsAre(1, 3));
}

class LibsvmReaderTest : public ::testing::Test {
 protected:
  absl::StatusOr<TrainAndTest> Read(std::string_view train, std::string_view test = "") {
    return ReadLibsvm({.train = WriteFile(folder_, "train.svm", train),
                       .test = test.empty() ? "" : WriteFile(folder_, "test.svm", test)});
  }
  std::string Refusal(std::string_view train, std::string_view test = "") {
    const auto sets = Read(train, test);
    EXPECT_EQ(sets.status().code(), absl::StatusCode::kDataLoss) << sets.status();
    return std::string(sets.status().message());
  }

  const std::string folder_ = MakeFolder("libsvm_reader");
};

TEST_F(LibsvmReaderTest, TheWidthIsThatOfBothFiles) {
  const std::string train = "# by hand\n-1 1:0.5 3:-2e1 # first\n+1\t2:+7 \n", test = "+1 5:1\r\n-1\r\n\n\r\n";
  for (const bool zipped : {false, true}) {
    const auto sets = zipped ? Read(Gzip(train), Gzip(test)) : Read(train, test);
    ASSERT_TRUE(sets.ok()) << sets.status();
    ExpectWhole(sets->train);
    ExpectWhole(sets->test);
    EXPECT_EQ(sets->train.channels, 5);
    EXPECT_EQ(sets->test.channels, 5);
    EXPECT_THAT(Numbers(sets->train), ElementsAre(0.5, 0, -20, 0, 0, 0, 7, 0, 0, 0));
    EXPECT_THAT(Numbers(sets->test), ElementsAre(0, 0, 0, 0, 1, 0, 0, 0, 0, 0));
    EXPECT_THAT(sets->train.labels, ElementsAre(0, 1));
    EXPECT_THAT(sets->test.labels, ElementsAre(1, 0));
    EXPECT_THAT(sets->class_names, ElementsAre("-1", "+1"));
    EXPECT_EQ(sets->train.classes, 2);
  }
  // The training file alone, and one whose indices are the larger ones; the last line has no end.
  EXPECT_EQ(Read("1 2:1\n0 1:1")->train.channels, 2);
  EXPECT_EQ(Read("1 65536:1\n", "0 1:1\n")->test.channels, 65536);
}

TEST_F(LibsvmReaderTest, APredictionNeedsNoLabels) {
  const auto read = [&](std::string_view text) {
    return ReadLibsvm({.train = WriteFile(folder_, "new.svm", text), .columns_min = 3, .may_lack_labels = true});
  };
  const auto sets = read("# new\n1:0.5 3:-2\n2:7 # second\n");
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_FALSE(sets->train.has_labels);
  EXPECT_EQ(sets->train.classes, 1);
  EXPECT_THAT(Numbers(sets->train), ElementsAre(0.5, 0, -2, 0, 7, 0));
  EXPECT_THAT(sets->train.labels, ElementsAre(0, 0));
  EXPECT_THAT(read("-1 1:1\n+1\n")->class_names, ElementsAre("-1", "+1"));
  EXPECT_THAT(std::string(read("1:1\n-1 1:1\n").status().message()),
              HasSubstr("line 2: expected a pair, as the first line begins with one, found \"-1\""));
  EXPECT_THAT(std::string(read("-1 1:1\n1:1\n").status().message()),
              HasSubstr("line 2: expected a label, found the pair \"1:1\""));
  EXPECT_THAT(Refusal("1:1\n"), HasSubstr("expected a label, found the pair"));
}

TEST_F(LibsvmReaderTest, RefusesWrongPairs) {
  const auto line = [&](const std::string& text) { return Refusal("0 1:1\n" + text + "\n"); };
  const std::string place = "/train.svm, line 2: ";
  EXPECT_THAT(line("1 qid:3 1:1"),
              EndsWith(place + "found qid:, the groups of a ranking, which are not read: remove it from each line"));
  EXPECT_THAT(line("1 3"), EndsWith(place + "expected INDEX:VALUE, found \"3\""));
  EXPECT_THAT(line("1 a:3"), EndsWith(place + "expected INDEX:VALUE, found \"a:3\""));
  EXPECT_THAT(line("1 :3"), EndsWith(place + "expected INDEX:VALUE, found \":3\""));
  EXPECT_THAT(line("1 0:3"), EndsWith(place + "expected an index from 1 to 65536, found 0: add 1 to all indices, or "
                                              "write the file with zero_based=False"));
  EXPECT_THAT(line("1 65537:3"), EndsWith(place + "expected an index from 1 to 65536, found 65537"));
  EXPECT_THAT(line("1 -2:3"), EndsWith(place + "expected an index from 1 to 65536, found -2"));
  for (const char* const second : {"4", "7"}) {
    EXPECT_THAT(line(absl::StrCat("1 7:3 ", second, ":1")),
                EndsWith(absl::StrCat(place, "expected an index above 7, the one before it, found ", second,
                                      ": sort each line by index")));
  }
  for (const char* const value : {"", "x", "nan", "inf", "1e39", "1:2"}) {
    EXPECT_THAT(line(absl::StrCat("1 7:", value)),
                EndsWith(absl::StrCat(place, "expected a finite number of float32 at index 7, found \"", value,
                                      "\": replace it, or leave the pair out for 0")));
  }
}

TEST_F(LibsvmReaderTest, RefusesWrongLinesAndLabels) {
  EXPECT_THAT(Refusal("0 1:1\n1:1 2:2\n"), EndsWith("/train.svm, line 2: expected a label, found the pair \"1:1\""));
  EXPECT_THAT(Refusal("0,2 1:1\n"),
              EndsWith("/train.svm, line 1: expected one label, found \"0,2\": lists of labels are not read"));
  EXPECT_THAT(Refusal("nan 1:1\n"), EndsWith("/train.svm, line 1: expected a label, found \"nan\""));
  EXPECT_THAT(Refusal("1 1:1\n \n# x\n"), EndsWith("/train.svm, line 2: found an empty line before line 3, expected a "
                                                   "sample: remove the empty line"));
  for (const char* const text : {"", "\n", "# nothing\n\n"}) {
    EXPECT_THAT(Refusal(text), EndsWith("/train.svm has no samples: expected one line or more"));
  }
  EXPECT_THAT(Refusal("1\n2\n"), EndsWith("/train.svm has labels alone: expected INDEX:VALUE pairs"));
  EXPECT_THAT(Refusal("1 1:1\n", "1 1:1\n1 1:x\n"), HasSubstr("/test.svm, line 2: expected a finite number"));
  EXPECT_THAT(Refusal(Gzip("1 1:1\n#" + std::string(4 << 20, 'x'))),
              EndsWith("/train.svm, line 2: found more than 4194304 bytes, the limit of a line"));
  EXPECT_THAT(Refusal("<html> 404 Not Found\n"), HasSubstr("/train.svm is a web page"));
}

// Few bytes of a file become many zeros.
TEST_F(LibsvmReaderTest, StopsAtTheLimitOfBytes) {
  const std::string path = WriteFile(folder_, "limit.svm", "1 1:1\n1 65536:1\n");
  const auto read = [&](int64_t bytes_max) { return ReadLibsvm({.train = path, .bytes_max = bytes_max}); };
  EXPECT_TRUE(read(2 * 65536 * 4).ok());
  EXPECT_EQ(read(2 * 65536 * 4 - 1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(read(2 * 65536 * 4 - 1).status().message()),
      EndsWith("/limit.svm has 2 samples with indices up to 65536, which are more than the limits of 4294967295 "
               "samples and 524287 bytes of float32 with all zeros: use fewer"));
  EXPECT_THAT(std::string(read(4).status().message()), HasSubstr("has 2 samples with indices up to 65536"));
}

TEST_F(LibsvmReaderTest, ReadsMoreThanOnePiece) {
  std::string text;
  for (int i = 0; i < 60000; ++i) absl::StrAppend(&text, i % 3, " ", 1 + i % 5, ":", i, i % 2 == 0 ? "\r\n" : "\n");
  const auto sets = Read(text);
  ASSERT_TRUE(sets.ok()) << sets.status();
  ExpectWhole(sets->train);
  const std::vector<float> numbers = Numbers(sets->train);
  ASSERT_EQ(numbers.size(), 300000u);
  for (int i = 0; i < 60000; ++i) {
    ASSERT_EQ(sets->train.labels[i], i % 3);
    for (int c = 0; c < 5; ++c) ASSERT_EQ(numbers[5 * i + c], c == i % 5 ? i : 0);
  }
}

}  // namespace
}  // namespace starring
