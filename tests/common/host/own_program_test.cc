// tests/deploy/bundle_test.py tests the same with the programs of a bundle.
#include "common/host/own_program.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/steady_time.h"
#include "common/host/machine_limits.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

constexpr char kLoader[] = "/lib64/ld-linux-x86-64.so.2";

// A folder with the files of a bundle that has the programs bin/one and bin/two, which never run: only their loaders
// do.
class OwnProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* const name : {"one", "two"}) {
      for (const char* const place : {"bin", "libexec/bin", "libexec/loader/bin"}) {
        const fs::path file = top_ / place / name;
        fs::create_directories(file.parent_path());
        fs::copy_file(kLoader, file, fs::copy_options::overwrite_existing);
      }
    }
  }

  void TearDown() override { fs::remove_all(top_); }

  // /bin/sleep as a process of the program.
  pid_t StartSleep(const std::string& program) const {
    const std::string loader = top_ / "libexec/loader/bin" / program;
    const pid_t pid = fork();
    if (pid == 0) {
      execl(loader.c_str(), loader.c_str(), "/bin/sleep", "60", nullptr);
      _exit(1);
    }
    // Until then the child is a copy of this process.
    const fs::path file = absl::StrCat("/proc/", pid, "/exe");
    const absl::Time end = SteadyNow() + absl::Seconds(30);
    while (fs::read_symlink(file) != loader && SteadyNow() < end) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(fs::read_symlink(file), loader);
    return pid;
  }

  const fs::path top_ = fs::canonical(std::getenv("TEST_TMPDIR")) / absl::StrCat("bundle-", getpid());
};

TEST_F(OwnProgramTest, EachFileOfABundlesProgramIsTheProgram) {
  const std::string program = top_ / "bin/one";
  for (const char* const file : {"bin/one", "libexec/bin/one", "libexec/loader/bin/one"}) {
    EXPECT_EQ(ProgramOf(top_ / file), program);
  }
  EXPECT_NE(ProgramOf(top_ / "libexec/loader/bin/two"), program);
}

TEST_F(OwnProgramTest, OtherFilesAreThemselves) {
  for (const std::string file : {"/usr/libexec/starring/worker", "/libexec/worker", "/libexec/loader/worker", "/worker",
                                 "worker", "", "/usr/libexec/loader/bin/worker"}) {
    EXPECT_EQ(ProgramOf(file), file);
  }
}

TEST_F(OwnProgramTest, AProgramOfABuildIsItsFile) {
  EXPECT_EQ(OwnProgram(), fs::read_symlink("/proc/self/exe").string());
}

// Run by the next test as a process of bin/one.
TEST(OwnProgramChild, Says) {
  if (getenv("STARRING_TEST_CHILD") == nullptr) return;
  std::ifstream file("/proc/self/comm");
  std::string name;
  file >> name;
  printf("%s is %s, of %d processes\n", name.c_str(), OwnProgram().c_str(), CountProcessesOfThisProgram());
}

TEST_F(OwnProgramTest, ProgramsUnderLoadersOfTheirOwnAreToldApart) {
  const std::string self = fs::read_symlink("/proc/self/exe");
  const pid_t sleeping[] = {StartSleep("one"), StartSleep("two"), StartSleep("two")};
  const std::string command = absl::StrCat("STARRING_TEST_CHILD=yes '", (top_ / "libexec/loader/bin/one").string(),
                                           "' '", self, "' --gtest_filter=OwnProgramChild.Says");
  FILE* const output = popen(command.c_str(), "r");
  ASSERT_NE(output, nullptr);
  std::string text;
  for (int byte; (byte = fgetc(output)) != EOF;) text.push_back(static_cast<char>(byte));
  EXPECT_EQ(pclose(output), 0) << text;
  for (const pid_t pid : sleeping) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  // The sleeping one, and the child itself.
  const std::string line = absl::StrCat("one is ", (top_ / "bin/one").string(), ", of 2 processes\n");
  EXPECT_NE(text.find(line), std::string::npos) << text;
}

}  // namespace
}  // namespace starring
