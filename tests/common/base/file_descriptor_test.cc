#include "common/base/file_descriptor.h"

#include <fcntl.h>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(FileDescriptorTest, ClosesOnceAndOnlyWhatItHas) {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  {
    const FileDescriptor one(fd);
    EXPECT_EQ(one.get(), fd);
    EXPECT_GE(fcntl(fd, F_GETFD), 0);
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
  EXPECT_EQ(FileDescriptor(-1).get(), -1);
}

}  // namespace
}  // namespace starring
