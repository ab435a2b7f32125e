#include "common/host/own_cores.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

static int kernel_cores = 0;       // how many cores the kernel counts; 0: the machine's
static int error_of_affinity = 0;  // 0: the call succeeds

// Replaces libc's function. Like the kernel, it refuses a set without room for all cores. This process may use core 3
// and the last one.
extern "C" int sched_getaffinity(pid_t pid, size_t size_bytes, cpu_set_t* set) noexcept {
  memset(set, 0, size_bytes);
  if (kernel_cores == 0) return syscall(SYS_sched_getaffinity, pid, size_bytes, set) < 0 ? -1 : 0;
  errno = 8 * size_bytes < static_cast<size_t>(kernel_cores) ? EINVAL : error_of_affinity;
  if (errno != 0) return -1;
  CPU_SET_S(3, size_bytes, set);
  CPU_SET_S(kernel_cores - 1, size_bytes, set);
  return 0;
}

namespace starring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(OwnCoresTest, AreSomeOfTheMachines) {
  kernel_cores = 0;
  const std::vector<int> cores = OwnCores();
  EXPECT_GE(std::ssize(cores), 1);
  EXPECT_LE(std::ssize(cores), sysconf(_SC_NPROCESSORS_CONF));
}

// With the 1,024 places of a cpu_set_t the call would fail on the larger machines.
TEST(OwnCoresTest, AreFoundOnMachinesOfAnySize) {
  for (const int count : {8, 1024, 1025, 2048, 8192}) {
    kernel_cores = count;
    EXPECT_THAT(OwnCores(), ElementsAre(3, count - 1));
  }
  kernel_cores = 0;
}

TEST(OwnCoresTest, AreNoneWhereTheSystemDoesNotTell) {
  kernel_cores = 8;
  error_of_affinity = ENOSYS;
  EXPECT_THAT(OwnCores(), IsEmpty());
  error_of_affinity = EINVAL;  // without end
  EXPECT_THAT(OwnCores(), IsEmpty());
  kernel_cores = error_of_affinity = 0;
}

}  // namespace
}  // namespace starring
