#include "worker/data/files/csv_rows.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"
#include "worker/data/files/file_stream.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Row = std::vector<std::string>;

class CsvRowsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<Row>> Read(std::string_view content) {
    const auto stream = FileStream::Open(WriteFile(folder_, "f.csv", content)).value();
    CsvRows rows(*stream);
    std::vector<Row> all;
    lines_.clear();
    std::vector<absl::string_view> cells;
    for (;;) {
      ASSIGN_OR_RETURN(const bool any, rows.Next(cells));
      if (!any) return all;
      all.emplace_back(cells.begin(), cells.end());
      lines_.push_back(rows.line());
    }
  }
  std::string Refusal(std::string_view content) {
    const auto rows = Read(content);
    EXPECT_EQ(rows.status().code(), absl::StatusCode::kDataLoss) << rows.status();
    return std::string(rows.status().message());
  }

  const std::string folder_ = MakeFolder("csv_rows");
  std::vector<int64_t> lines_;  // on which the rows of the last Read began
};

TEST_F(CsvRowsTest, LinesEndWithLfOrCrlfOrTheFile) {
  for (const char* const text : {"a,bc\n,d\n", "a,bc\r\n,d\r\n", "a,bc\n,d", "a,bc\r\n,d",
                                 "\xef\xbb\xbf"
                                 "a,bc\n,d\n"}) {
    EXPECT_THAT(Read(text).value(), ElementsAre(Row{"a", "bc"}, Row{"", "d"})) << text;
    EXPECT_THAT(Read(Gzip(text)).value(), ElementsAre(Row{"a", "bc"}, Row{"", "d"})) << text;
  }
  EXPECT_THAT(Read("").value(), IsEmpty());
  EXPECT_THAT(Read("a,").value(), ElementsAre(Row{"a", ""}));
  EXPECT_THAT(Read(",").value(), ElementsAre(Row{"", ""}));
}

TEST_F(CsvRowsTest, AnEmptyLineHasNoCells) {
  EXPECT_THAT(Read("\na\n\r\n\"\"\n \n\n").value(), ElementsAre(Row{}, Row{"a"}, Row{}, Row{""}, Row{" "}, Row{}));
  EXPECT_THAT(lines_, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(CsvRowsTest, QuotesHoldCommasLineEndsAndQuotes) {
  EXPECT_THAT(Read("\"a,b\",\"c\nd\r\n\"\r\n\"say \"\"hi\"\"\",\"\"\"\",\"\"\nx,y,\"z\"").value(),
              ElementsAre(Row{"a,b", "c\nd\r\n"}, Row{"say \"hi\"", "\"", ""}, Row{"x", "y", "z"}));
  EXPECT_THAT(lines_, ElementsAre(1, 4, 5));
}

TEST_F(CsvRowsTest, RefusesWrongQuotes) {
  EXPECT_THAT(Refusal("a,b\nc,d\"e\n"),
              EndsWith("/f.csv, line 2, column 2: expected quotes around the whole cell, found "
                       "one inside: \"d\\\"e\\n\": write the cell in quotes, with each quote "
                       "inside doubled"));
  EXPECT_THAT(Refusal("\"a\" ,b\n"), EndsWith("/f.csv, line 1, column 1: expected a comma or a line's end after the "
                                              "closing quote, found \" ,b\\n\": double each quote inside a cell"));
  EXPECT_THAT(Refusal("a,b\n\"x\ny\",\"c"),
              EndsWith("/f.csv, line 2, column 2: expected a closing quote, found the end "
                       "of the file after \"c\": close the quote"));
  EXPECT_THAT(
      Refusal("1,\"" + std::string(70000, 'x') + std::string(300000, '\n')),
      HasSubstr("/f.csv, line 1, column 2: expected a closing quote, found none within 65536 bytes after \"xxx"));
}

TEST_F(CsvRowsTest, RefusesCrAlone) {
  for (const char* const text : {"a\rb\r", "a\r"}) {
    EXPECT_THAT(Refusal(text), HasSubstr("/f.csv, line 1, column 1: expected lines that end with LF or CRLF, found CR "
                                         "alone: save the file with line ends of Unix"));
  }
  EXPECT_THAT(Refusal("a,\"b\"\r,c\n"), HasSubstr("column 2: expected lines that end with LF or CRLF"));
}

TEST_F(CsvRowsTest, LimitsCellsAndRows) {
  const std::string cell(65536, 'x');
  EXPECT_THAT(Read(cell + ",\"" + cell + "\"\n").value(), ElementsAre(Row{cell, cell}));
  EXPECT_THAT(Refusal("a," + cell + "x\n"), HasSubstr("line 1, column 2: found a cell of more than 65536 bytes"));
  EXPECT_THAT(Refusal("\"" + cell + "x\"\n"), HasSubstr("line 1, column 1: found a cell of more than 65536 bytes"));
  EXPECT_EQ(Read(std::string(65536, ',') + "\n").value()[0].size(), 65537u);
  EXPECT_THAT(Refusal("a\n" + std::string(65537, ',') + "\n"), HasSubstr("line 2: found more than 65537 cells"));
  std::string row;
  for (int i = 0; i < 70; ++i) row += std::string(60000, 'x') + ",";
  EXPECT_THAT(Refusal(Gzip("a\n" + row)),
              HasSubstr("line 2: found a row of more than 4194304 bytes, the limit: does the file have line ends?"));
}

// Rows end everywhere in the pieces that are read, and begin anew with the next piece.
TEST_F(CsvRowsTest, ReadsMoreThanOnePiece) {
  std::string content;
  std::vector<Row> expected;
  for (int i = 0; std::ssize(content) < 3'000'000; ++i) {
    const Row row = {std::to_string(i), std::string(static_cast<size_t>(i * 37 % 5000), 'x'),
                     "q\"" + std::to_string(i)};
    content += row[0] + "," + row[1] + ",\"q\"\"" + row[0] + "\"" + (i % 2 == 0 ? "\r\n" : "\n");
    expected.push_back(row);
  }
  EXPECT_EQ(Read(content).value(), expected);
  EXPECT_EQ(Read(Gzip(content)).value(), expected);
}

// The first read takes 256 KiB.
TEST_F(CsvRowsTest, APieceMayEndAnywhereInARow) {
  const std::string_view row = "\"q\"\"q\"\r\n";
  for (size_t bytes = 0; bytes <= row.size(); ++bytes) {
    std::string content;
    while (content.size() + 2 + bytes <= 256 << 10) content += "a\n";
    if (content.size() + bytes < 256 << 10) content.insert(0, "a");
    content.append(row).append(1000, '\n');
    const auto rows = Read(content);
    ASSERT_TRUE(rows.ok()) << bytes << ": " << rows.status();
    EXPECT_EQ((*rows)[rows->size() - 1001], Row{"q\"q"}) << bytes;
  }
}

TEST_F(CsvRowsTest, AnyPartOfAFileIsReadOrRefused) {
  const std::string content =
      "\xef\xbb\xbf"
      "a,\"b\"\"c\"\r\n\"d\ne\",f\n";
  for (size_t size = 0; size <= content.size(); ++size) {
    const auto rows = Read(content.substr(0, size));
    if (rows.ok()) {
      EXPECT_LE(rows->size(), 2u);
    }
  }
}

}  // namespace
}  // namespace starring
