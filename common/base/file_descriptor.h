// Closes a file descriptor when it goes out of scope.
#ifndef STARRING_COMMON_BASE_FILE_DESCRIPTOR_H_
#define STARRING_COMMON_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

namespace starring {

class FileDescriptor {
 public:
  // Takes `fd`, which may be -1: none.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace starring

#endif  // STARRING_COMMON_BASE_FILE_DESCRIPTOR_H_
