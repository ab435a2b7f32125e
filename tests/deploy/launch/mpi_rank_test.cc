#include "deploy/launch/mpi_rank.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "deploy/launch/child_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A process that sends back each byte that it gets. It ends with this process at the latest. One at a time.
class Echo {
 public:
  Echo() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    fd_ = fds[0];
    pid_ = fork();
    if (pid_ == 0) {
      close(fds[0]);
      char byte = 0;
      while (read(fds[1], &byte, 1) == 1 && write(fds[1], &byte, 1) == 1) {
      }
      _exit(0);
    }
    close(fds[1]);
  }
  ~Echo() {
    Hang();
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  pid_t pid() const { return pid_; }
  // False once the process has ended, or has been sent SIGKILL.
  bool Answers() const {
    char byte = 'x';
    return send(fd_, &byte, 1, MSG_NOSIGNAL) == 1 && read(fd_, &byte, 1) == 1;
  }
  // Lets the process end, and waits until it is a zombie.
  void EndUnnoticed() {
    Hang();
    siginfo_t facts = {};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &facts, WEXITED | WNOWAIT), 0);
  }
  // Waits for its end. Returns its exit code, as a shell shows it.
  int Await() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return ExitCodeOf(status);
  }

 private:
  void Hang() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  int fd_ = -1;
  pid_t pid_ = -1;
};

class MpiRankTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  // As the rank does when it starts.
  void Note(int rank, const std::string& text) const { std::ofstream(RankPath(folder_, rank, "pid")) << text; }
  void Note(int rank, const Echo& process) const { Note(rank, std::to_string(process.pid()) + "\n"); }

  std::string folder_;
};

TEST_F(MpiRankTest, ARankThatHasNotNotedItsProcessHasNotEnded) {
  EXPECT_EQ(CountEndedRanks(folder_, 3, getpid()), 0);
  Note(1, "");  // the file exists before it is written
  EXPECT_EQ(CountEndedRanks(folder_, 3, getpid()), 0);
  KillRanks(folder_, 3, getpid());
}

TEST_F(MpiRankTest, AZombieHasEnded) {
  Echo rank;
  Note(2, rank);
  EXPECT_EQ(CountEndedRanks(folder_, 3, getpid()), 0);
  rank.EndUnnoticed();
  EXPECT_EQ(CountEndedRanks(folder_, 3, getpid()), 1);
}

TEST_F(MpiRankTest, CountsRanksThatHaveStarted) {
  EXPECT_EQ(CountStartedRanks(folder_, 3), 0);
  const Echo rank;
  Note(2, rank);
  EXPECT_EQ(CountStartedRanks(folder_, 3), 1);
}

TEST_F(MpiRankTest, KillsARankThatRuns) {
  Echo rank;
  Note(0, rank);
  EXPECT_TRUE(rank.Answers());
  KillRanks(folder_, 1, getpid());
  EXPECT_EQ(rank.Await(), 128 + SIGKILL);
}

// The rank has ended, and its process id belongs to a process that is none of mpirun's.
TEST_F(MpiRankTest, ARankWhoseParentIsAnotherProcessHasEndedAndIsNotKilled) {
  const Echo stranger;
  Note(0, stranger);
  const pid_t mpirun = getpid() + 1;  // any process but the stranger's parent
  EXPECT_EQ(CountEndedRanks(folder_, 1, mpirun), 1);
  KillRanks(folder_, 1, mpirun);
  EXPECT_TRUE(stranger.Answers());
}

TEST_F(MpiRankTest, ARankCommandNeedsTheFlagAndAProgram) {
  const char* const rank[] = {"launch", "--run_rank=/folder", "--cores=0", "--hang_up=asks", "--", "worker"};
  EXPECT_TRUE(IsRankCommand(6, rank));
  EXPECT_FALSE(IsRankCommand(5, rank));
  EXPECT_FALSE(IsRankCommand(1, rank));
  const char* const job[] = {"launch", "--sync=ring", "--workers=2", "--", "--model=lenet5"};
  EXPECT_FALSE(IsRankCommand(5, job));
}

TEST_F(MpiRankTest, DefaultsLeaveTheUsersVariablesAlone) {
  const std::vector<std::string> users = {"OMPI_ALLOW_RUN_AS_ROOT=0", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=0",
                                          "OMPI_MCA_mpi_yield_when_idle=0", "OMPI_MCA_plm=isolated",
                                          "OMPI_MCA_btl_vader_single_copy_mechanism=cma"};
  Environment environment(users);
  SetMpiDefaults(8, 1, environment);
  EXPECT_EQ(environment.variables(), users);
}

TEST_F(MpiRankTest, MoreRanksThanCoresYield) {
  constexpr char kYield[] = "OMPI_MCA_mpi_yield_when_idle";
  Environment enough{std::vector<std::string>()};
  SetMpiDefaults(2, 2, enough);
  EXPECT_EQ(enough.Find(kYield), nullptr);
  Environment few{std::vector<std::string>()};
  SetMpiDefaults(3, 2, few);
  ASSERT_NE(few.Find(kYield), nullptr);
  EXPECT_EQ(*few.Find(kYield), std::string(kYield) + "=1");
}

// A container's /dev/shm may have 64 KiB.
TEST_F(MpiRankTest, ASmallFolderForSharedMemoryIsReplaced) {
  constexpr char kFolder[] = "OMPI_MCA_btl_vader_backing_directory";
  Environment small{std::vector<std::string>()};
  SetMpiMemory(2, folder_, small, "/proc");  // no byte of which is free
  ASSERT_NE(small.Find(kFolder), nullptr);
  EXPECT_EQ(*small.Find(kFolder), absl::StrCat(kFolder, "=", folder_));
  Environment users{{absl::StrCat(kFolder, "=/scratch")}};
  SetMpiMemory(2, folder_, users, "/proc");
  EXPECT_EQ(*users.Find(kFolder), absl::StrCat(kFolder, "=/scratch"));
  for (const std::string& usual : {folder_, std::string("/nowhere")}) {
    Environment large{std::vector<std::string>()};
    SetMpiMemory(2, folder_, large, usual);
    EXPECT_EQ(large.Find(kFolder), nullptr) << usual;
  }
}

// PATH is the test's folder.
class MpirunCommandTest : public MpiRankTest {
 protected:
  void SetUp() override {
    MpiRankTest::SetUp();
    const char* const path = getenv("PATH");
    if (path != nullptr) path_ = path;
    setenv("PATH", folder_.c_str(), 1);
  }
  void TearDown() override { setenv("PATH", path_.c_str(), 1); }

 private:
  std::string path_;
};

// A container for one machine often has no ssh, and the ranks need none.
TEST_F(MpirunCommandTest, WithoutSshOpenMpiLooksForNoOtherNodes) {
  Environment without{std::vector<std::string>()};
  SetMpiDefaults(1, 1, without);
  ASSERT_NE(without.Find("OMPI_MCA_plm"), nullptr);
  EXPECT_EQ(*without.Find("OMPI_MCA_plm"), "OMPI_MCA_plm=^rsh");
  Environment users{{"OMPI_MCA_plm_rsh_agent=/opt/agent"}};
  SetMpiDefaults(1, 1, users);
  EXPECT_EQ(users.Find("OMPI_MCA_plm"), nullptr);
  std::ofstream(folder_ + "/ssh") << "#!/bin/sh\n";
  fs::permissions(folder_ + "/ssh", fs::perms::owner_all);
  Environment with{std::vector<std::string>()};
  SetMpiDefaults(1, 1, with);
  EXPECT_EQ(with.Find("OMPI_MCA_plm"), nullptr);
}

TEST_F(MpirunCommandTest, WithoutMpirunTheWayOutIsNamed) {
  ChildSpec spec;
  const absl::Status status = SetMpirunCommand({.folder = folder_, .cores = {{0}}, .worker = {"worker"}}, spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--sync=star"));
}

TEST_F(MpirunCommandTest, MpirunStartsThisProgramAsARank) {
  const std::string mpirun = folder_ + "/mpirun";
  std::ofstream(mpirun) << "#!/bin/sh\n";
  fs::permissions(mpirun, fs::perms::owner_all);
  const MpiJob job = {.rank_count = 2, .folder = folder_, .cores = {{0}, {1}}, .worker = {"worker", "--model=lenet5"}};
  ChildSpec spec;
  ASSERT_TRUE(SetMpirunCommand(job, spec).ok());
  EXPECT_EQ(spec.program, mpirun);
  std::vector<const char*> words;
  for (const std::string& word : spec.argv) words.push_back(word.c_str());
  const std::string self = fs::read_symlink("/proc/self/exe");
  const auto begin = std::find(words.begin(), words.end(), self);
  ASSERT_TRUE(begin != words.end());
  EXPECT_TRUE(IsRankCommand(static_cast<int>(words.end() - begin), &*begin));
  EXPECT_EQ(std::vector<std::string>(words.end() - 2, words.end()), job.worker);
}

}  // namespace
}  // namespace starring
