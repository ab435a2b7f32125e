#include "tests/server/elastic/counted_flushes.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace starring {
namespace {

std::atomic<int> file_flushes = 0, folder_flushes = 0;

}  // namespace

FlushCounts TakeFlushCounts() { return {.files = file_flushes.exchange(0), .folders = folder_flushes.exchange(0)}; }

}  // namespace starring

extern "C" int fdatasync(int file) {
  ++starring::file_flushes;
  return static_cast<int>(syscall(SYS_fdatasync, file));
}

extern "C" int fsync(int file) {
  ++starring::folder_flushes;
  return static_cast<int>(syscall(SYS_fsync, file));
}
