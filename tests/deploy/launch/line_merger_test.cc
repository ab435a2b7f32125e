#include "deploy/launch/line_merger.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

class LineMergerTest : public ::testing::Test {
 protected:
  std::string out_;
  std::string err_;
  LineMerger merger_{[this](OutputStream stream, absl::string_view bytes) {
    absl::StrAppend(stream == OutputStream::kOut ? &out_ : &err_, bytes);
  }};
};

TEST_F(LineMergerTest, LinesComeOutWhole) {
  const int a = merger_.AddPrefixed("a | ", OutputStream::kOut);
  const int b = merger_.AddPrefixed("b | ", OutputStream::kOut);
  merger_.Feed(a, "on");
  merger_.Feed(b, "x\ny");
  merger_.Feed(a, "e\n\n");
  EXPECT_EQ(out_, "b | x\na | one\na | \n");
  merger_.Close(b);
  merger_.Close(a);
  EXPECT_EQ(out_, "b | x\na | one\na | \nb | y\n");
  EXPECT_EQ(err_, "");
}

TEST_F(LineMergerTest, StreamsStayApart) {
  const int error = merger_.AddPrefixed("w1 | ", OutputStream::kErr);
  merger_.Feed(error, "oops\n");
  merger_.Print("launch: hello");
  EXPECT_EQ(out_, "");
  EXPECT_EQ(err_, "w1 | oops\nlaunch: hello\n");
}

TEST_F(LineMergerTest, AnEndlessLineIsCut) {
  const int source = merger_.AddPrefixed("", OutputStream::kOut);
  const std::string piece(1000, 'x');
  for (int i = 0; i < 100; ++i) merger_.Feed(source, piece);
  EXPECT_EQ(out_, absl::StrCat(std::string(LineMerger::kLineBytesMax, 'x'), "\n"));
  merger_.Close(source);
  EXPECT_EQ(out_.size(), 100 * 1000 + 2);
}

TEST_F(LineMergerTest, TheLiveRowIsDrawnAgainBelowOtherLines) {
  const int live = merger_.AddLive();
  const int other = merger_.AddPrefixed("w1 | ", OutputStream::kOut);
  merger_.Feed(live, "begin\n\r10 %");
  merger_.Feed(live, "\r20 %");
  merger_.Feed(other, "hello\n");
  EXPECT_EQ(out_, "begin\n\r10 %\r20 %\r\033[Kw1 | hello\n20 %");
}

TEST_F(LineMergerTest, ARowThatEndsWithACarriageReturnIsStillThere) {
  const int live = merger_.AddLive();
  const int other = merger_.AddPrefixed("w1 | ", OutputStream::kErr);
  merger_.Feed(live, "30 %\r");
  merger_.Feed(other, "hello\n");
  EXPECT_EQ(out_, "30 %\r\r\033[K30 %\r");
  EXPECT_EQ(err_, "w1 | hello\n");
  merger_.Feed(live, "done\n");
  merger_.Feed(other, "again\n");
  EXPECT_EQ(out_, "30 %\r\r\033[K30 %\rdone\n");
}

TEST_F(LineMergerTest, TheLiveRowIsFinishedAtTheEnd) {
  const int live = merger_.AddLive();
  merger_.Feed(live, "50 %");
  merger_.Close(live);
  merger_.Print("launch: bye");
  EXPECT_EQ(out_, "50 %\n");
}

}  // namespace
}  // namespace starring
