#include "worker/data/files/text_pieces.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"
#include "worker/data/files/file_stream.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using Grown = TextPieces::Grown;

class TextPiecesTest : public ::testing::Test {
 protected:
  TextPieces Open(std::string_view content, int64_t bytes_max) {
    stream_ = FileStream::Open(WriteFile(folder_, "text", content)).value();
    return TextPieces(*stream_, bytes_max);
  }
  static std::string Text(TextPieces& pieces) { return {pieces.text().begin(), pieces.text().end()}; }

  const std::string folder_ = MakeFolder("text_pieces");
  std::unique_ptr<FileStream> stream_;
};

TEST_F(TextPiecesTest, ConsumedTextMakesRoom) {
  TextPieces pieces = Open("abcdefgh", 4);
  EXPECT_EQ(Text(pieces), "");
  EXPECT_EQ(pieces.Grow().value(), Grown::kMore);
  EXPECT_EQ(Text(pieces), "abcd");
  EXPECT_EQ(pieces.Grow().value(), Grown::kFull);
  pieces.Consume(3);
  EXPECT_EQ(Text(pieces), "d");
  EXPECT_EQ(pieces.Grow().value(), Grown::kMore);
  EXPECT_EQ(Text(pieces), "defg");
  pieces.Consume(4);
  EXPECT_EQ(pieces.Grow().value(), Grown::kMore);
  EXPECT_EQ(Text(pieces), "h");
  EXPECT_EQ(pieces.Grow().value(), Grown::kEnd);
  EXPECT_EQ(Text(pieces), "h");
}

TEST_F(TextPiecesTest, TextThatIsNotConsumedStaysInFrontOfMore) {
  std::string content;
  for (int i = 0; i < 1'000'000; ++i) content.push_back(static_cast<char>('a' + i % 23));
  TextPieces pieces = Open(Gzip(content), 2 << 20);
  size_t size = 0;
  for (;;) {
    const Grown grown = pieces.Grow().value();
    if (grown == Grown::kEnd) break;
    EXPECT_EQ(grown, Grown::kMore);
    EXPECT_GT(pieces.text().size(), size);
    size = pieces.text().size();
  }
  EXPECT_EQ(Text(pieces), content);
}

TEST_F(TextPiecesTest, MarksAtTheBeginning) {
  TextPieces marked = Open("\xef\xbb\xbfx,y", 100);
  EXPECT_EQ(marked.Grow().value(), Grown::kMore);
  EXPECT_EQ(Text(marked), "x,y");
  TextPieces only_mark = Open("\xef\xbb\xbf", 100);
  EXPECT_EQ(only_mark.Grow().value(), Grown::kEnd);
  EXPECT_EQ(Text(only_mark), "");
  for (const char* const mark : {"\xff\xfex", "\xfe\xffx"}) {
    TextPieces wide = Open(mark, 100);
    EXPECT_THAT(std::string(wide.Grow().status().message()),
                HasSubstr("/text begins with the mark of UTF-16, expected UTF-8: save it as UTF-8"));
  }
}

TEST_F(TextPiecesTest, ExplainsAnotherKindOfFile) {
  const absl::Status refusal = absl::DataLossError("a row is wrong");
  TextPieces table = Open("1,2\n", 100);
  EXPECT_TRUE(table.Grow().ok());
  EXPECT_EQ(table.Explain(refusal), refusal);
  TextPieces page = Open("<html>404 Not Found</html>", 100);
  EXPECT_TRUE(page.Grow().ok());
  EXPECT_THAT(std::string(page.Explain(refusal).message()), HasSubstr("/text is a web page"));
  EXPECT_TRUE(page.Explain(absl::OkStatus()).ok());
}

TEST_F(TextPiecesTest, PassesAReadersErrorOn) {
  std::string zipped = Gzip("1,2\n3,4\n");
  zipped.resize(zipped.size() - 3);
  TextPieces pieces = Open(zipped, 100);
  EXPECT_THAT(std::string(pieces.Grow().status().message()), HasSubstr("/text is truncated"));
}

}  // namespace
}  // namespace starring
