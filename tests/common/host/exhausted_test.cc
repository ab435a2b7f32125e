#include "common/host/exhausted.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <stdexcept>
#include <system_error>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

// An exception that nobody catches; gtest would.
template <typename Exception>
void EndBy(const Exception& exception) noexcept {
  const auto thrower = [&] { throw Exception(exception); };
  ExplainExhaustion("worker");
  thrower();
}

// std::thread throws this error where the kernel grants no thread. Root has no limit of threads, so a test cannot reach
// it.
TEST(ExhaustedTest, AThreadThatCannotBeStartedNamesTheLimit) {
  const auto run = [] {
    const rlimit few = {.rlim_cur = 7, .rlim_max = 7};
    if (setrlimit(RLIMIT_NPROC, &few) != 0) _exit(99);
    EndBy(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(1),
              "^worker: error: the machine grants no further thread: ulimit -u is 7 for all processes and threads of "
              "this user.*: raise it, or start fewer processes and threads\n$");
}

TEST(ExhaustedTest, MemoryThatCannotBeHadNamesTheLimit) {
  EXPECT_EXIT(EndBy(std::bad_alloc()), testing::ExitedWithCode(1),
              "^worker: error: the machine grants no further memory: .*GiB: give it more");
}

TEST(ExhaustedTest, AnyOtherEndIsAsBefore) {
  EXPECT_EXIT(EndBy(std::logic_error("a defect")), testing::KilledBySignal(SIGABRT), "a defect");
}

TEST(ExhaustedTest, ControlGroupsCount) {
  namespace fs = std::filesystem;
  const std::string root = testing::TempDir() + "/machine";
  fs::create_directories(root + "/proc/self");
  fs::create_directories(root + "/sys/fs/cgroup/docker/job");
  std::ofstream(root + "/proc/self/cgroup") << "0::/docker/job\n";
  std::ofstream(root + "/sys/fs/cgroup/docker/job/pids.max") << "max\n";
  EXPECT_EQ(ThreadLimitsText(root).find("pids.max"), std::string::npos);
  std::ofstream(root + "/sys/fs/cgroup/docker/pids.max") << "20\n";
  EXPECT_THAT(ThreadLimitsText(root), HasSubstr("pids.max of the control group is 20"));
  std::ofstream(root + "/proc/meminfo") << "MemAvailable:    8000000 kB\n";
  std::ofstream(root + "/sys/fs/cgroup/docker/memory.max") << "125829120\n";
  EXPECT_THAT(MemoryLimitsText(root), HasSubstr("machine and control group still grant 0.12 GiB"));
}

}  // namespace
}  // namespace starring
