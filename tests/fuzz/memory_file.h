// A file that exists only in memory, for readers that take a path.
//
// Thread safety: one thread.
#ifndef STARRING_TESTS_FUZZ_MEMORY_FILE_H_
#define STARRING_TESTS_FUZZ_MEMORY_FILE_H_

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "common/base/check.h"

namespace starring {

class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) { CHECK_GE(descriptor_, 0); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(descriptor_); }

  void Write(std::string_view content) {
    CHECK_EQ(ftruncate(descriptor_, 0), 0);
    CHECK_EQ(pwrite(descriptor_, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  }
  // The path, which opens as a regular file.
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  const int descriptor_;
};

}  // namespace starring

#endif  // STARRING_TESTS_FUZZ_MEMORY_FILE_H_
