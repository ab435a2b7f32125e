#include "deploy/launch/output_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "common/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

// A queue whose output goes into a pipe.
class OutputQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC | O_NONBLOCK), 0);
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
  // What comes out until nothing is left in the queue.
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
  const std::string all = ReadAll();
  EXPECT_EQ(queue_->fd(), -1);
  const int64_t kept = std::count(all.begin(), all.end(), 'x');
  const int64_t in_pipe = fcntl(pipe_[0], F_GETPIPE_SZ);
  EXPECT_GE(kept, static_cast<int64_t>(kLaunchOutputBytesMax));
  EXPECT_LE(kept, static_cast<int64_t>(kLaunchOutputBytesMax) + in_pipe);
  EXPECT_THAT(all, HasSubstr(std::to_string(2 * kLaunchOutputBytesMax - kept) + " bytes of output are left out"));
  // And it goes on as if nothing had been.
  queue_->Write(OutputStream::kOut, "more");
  EXPECT_EQ(ReadAll(), "more");
}

}  // namespace
}  // namespace starring
