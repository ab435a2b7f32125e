// A folder in memory, where the system has one, for code that makes, flushes or locks files by their names.
//
// Thread safety: one thread.
#ifndef STARRING_TESTS_FUZZ_MEMORY_FOLDER_H_
#define STARRING_TESTS_FUZZ_MEMORY_FOLDER_H_

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "common/base/check.h"

namespace starring {

class MemoryFolder {
 public:
  MemoryFolder() { CHECK(mkdtemp(path_.data()) != nullptr) << path_; }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;
  ~MemoryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  // The path of the folder, with nothing in it.
  const std::string& Emptied() {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) unlink(entry.path().c_str());
    return path_;
  }

 private:
  std::string path_ = access("/dev/shm", W_OK) == 0 ? "/dev/shm/fuzz.XXXXXX" : "/tmp/fuzz.XXXXXX";
};

}  // namespace starring

#endif  // STARRING_TESTS_FUZZ_MEMORY_FOLDER_H_
