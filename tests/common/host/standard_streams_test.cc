#include "common/host/standard_streams.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "gtest/gtest.h"

namespace starring {
namespace {

bool IsNull(int descriptor) {
  struct stat null = {};
  struct stat facts = {};
  return stat("/dev/null", &null) == 0 && fstat(descriptor, &facts) == 0 && facts.st_rdev == null.st_rdev;
}

// In a child, the number of the next file that is opened after `closed` were; -1 if one of them is not /dev/null.
int NextFile(std::initializer_list<int> closed) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int descriptor : closed) close(descriptor);
    OpenStandardStreams();
    for (const int descriptor : closed) {
      if (!IsNull(descriptor)) _exit(255);
    }
    _exit(open("/proc/self/stat", O_RDONLY));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 255 ? -1 : WEXITSTATUS(status);
}

TEST(StandardStreamsTest, NoFileGetsTheNumberOfAClosedStream) {
  EXPECT_GE(NextFile({}), 3);
  EXPECT_GE(NextFile({STDOUT_FILENO}), 3);
  EXPECT_GE(NextFile({STDIN_FILENO, STDERR_FILENO}), 3);
  EXPECT_GE(NextFile({STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}), 3);
}

}  // namespace
}  // namespace starring
