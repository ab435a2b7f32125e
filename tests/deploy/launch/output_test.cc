#include "deploy/launch/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_EQ(out_.size(), 100 * 1000 + 2);  // all bytes, and two ends of lines
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

// A queue whose output goes into a pipe.
class OutputQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC | O_NONBLOCK), 0);
    // The queue writes to the standard output and error that it finds when it is created.
    const int before[] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    dup2(pipe_[1], STDOUT_FILENO);
    dup2(pipe_[1], STDERR_FILENO);
    queue_.emplace();
    dup2(before[0], STDOUT_FILENO);
    dup2(before[1], STDERR_FILENO);
    for (const int fd : before) close(fd);
  }
  void TearDown() override {
    queue_.reset();
    for (const int fd : pipe_) close(fd);
  }
  // Reads what the queue writes, until the queue is empty.
  std::string ReadAll() {
    std::string all;
    std::string part(1 << 16, '\0');
    while (true) {
      queue_->Drain();
      const ssize_t bytes = read(pipe_[0], part.data(), part.size());
      if (bytes <= 0) return all;
      all.append(part, 0, bytes);
    }
  }

  int pipe_[2] = {-1, -1};
  std::optional<OutputQueue> queue_;
};

TEST_F(OutputQueueTest, KeepsNoMoreThanAllowedAndSaysHowMuchIsLeftOut) {
  const std::string piece(1 << 14, 'x');
  for (size_t bytes = 0; bytes < 2 * kLaunchOutputBytesMax; bytes += piece.size()) {
    queue_->Write(OutputStream::kOut, piece);
  }
  EXPECT_NE(queue_->fd(), -1);
  queue_->Write(OutputStream::kOut, "y");  // would fit, but comes after the gap
  const std::string all = ReadAll();
  EXPECT_EQ(queue_->fd(), -1);
  const int64_t kept = std::count(all.begin(), all.end(), 'x');
  const int64_t in_pipe = fcntl(pipe_[0], F_GETPIPE_SZ);
  EXPECT_GE(kept, static_cast<int64_t>(kLaunchOutputBytesMax));
  EXPECT_LE(kept, static_cast<int64_t>(kLaunchOutputBytesMax) + in_pipe);
  EXPECT_THAT(all, HasSubstr(std::to_string(2 * kLaunchOutputBytesMax + 1 - kept) + " bytes of output are left out"));
  // After the loss the queue works as before.
  queue_->Write(OutputStream::kOut, "more");
  EXPECT_EQ(ReadAll(), "more");
}

}  // namespace
}  // namespace starring
