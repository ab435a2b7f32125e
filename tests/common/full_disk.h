// A full disk, for tests that write files.
#ifndef STARRING_TESTS_COMMON_FULL_DISK_H_
#define STARRING_TESTS_COMMON_FULL_DISK_H_

#include <signal.h>
#include <sys/resource.h>

#include "common/base/check.h"

namespace starring {

// While it lives, this process cannot make a file longer than `bytes_max`: writes fail with EFBIG, as on a full disk
// they fail with ENOSPC.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes_max) {
    signal(SIGXFSZ, SIG_IGN);  // else the signal would end the process
    const int result = getrlimit(RLIMIT_FSIZE, &before_);
    CHECK_EQ(result, 0);
    SetLimit({.rlim_cur = bytes_max, .rlim_max = before_.rlim_max});
  }
  ~FullDisk() { SetLimit(before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  static void SetLimit(const rlimit& limit) {
    const int result = setrlimit(RLIMIT_FSIZE, &limit);
    CHECK_EQ(result, 0);
  }

  rlimit before_ = {};
};

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_FULL_DISK_H_
