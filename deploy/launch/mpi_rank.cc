#include "deploy/launch/mpi_rank.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/host/own_program.h"
#include "common/host/stop_signals.h"
#include "deploy/launch/child_process.h"

namespace starring {
namespace {

constexpr absl::string_view kRankFlag = "--run_rank=";
constexpr absl::string_view kCoresFlag = "--cores=";
constexpr absl::string_view kHangUpFlag = "--hang_up=";
constexpr int kRankCommandWords = 5;  // launch --run_rank=... --cores=... --hang_up=... --

// Container runtimes may forbid a process to read the memory of another (cross-memory attach). Open MPI discovers that
// in the middle of a message and floods the terminal with errors. So it is tried here first, on a child.
bool MayReadMemoryOfPeers() {
  static const char kSecret = 'x';
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  if (pid < 0) return false;
  char copy = 0;
  const iovec local = {.iov_base = &copy, .iov_len = 1};
  const iovec remote = {.iov_base = const_cast<char*>(&kSecret), .iov_len = 1};
  const bool allowed = process_vm_readv(pid, &local, 1, &remote, 1, 0) == 1 && copy == kSecret;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return allowed;
}

// The parent of a process; 0 if the process does not exist or is a zombie, which has ended unnoticed by its parent.
pid_t ParentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    absl::string_view text = line;
    int parent = 0;
    if (absl::StartsWith(text, "State:\tZ")) return 0;
    if (absl::ConsumePrefix(&text, "PPid:") && absl::SimpleAtoi(text, &parent)) return parent;
  }
  return 0;
}

// The process id that the rank noted when it started; 0 if there is none yet.
pid_t NotedPid(const std::string& folder, int rank) {
  pid_t pid = 0;
  std::ifstream file(RankPath(folder, rank, "pid"));
  return file >> pid && pid > 0 ? pid : 0;
}

std::vector<std::string> FoldersOnPath() {
  const char* const path = getenv("PATH");
  return absl::StrSplit(path == nullptr ? "/usr/bin" : path, ':', absl::SkipEmpty());
}

// The path of the first one in `folders`; empty if there is none.
std::string FindProgram(absl::string_view name, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    std::string program = absl::StrCat(folder, "/", name);
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

[[noreturn]] void GiveUp(int rank, absl::string_view what) {
  fprintf(stderr, "launch: rank %d: %.*s: %s\n", rank, static_cast<int>(what.size()), what.data(), strerror(errno));
  _exit(1);
}

void Redirect(int rank, const std::string& path, int to) {
  const int fd = open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (fd < 0 || dup2(fd, to) < 0) GiveUp(rank, path);
}

}  // namespace

std::string RankPath(const std::string& folder, int rank, const std::string& what) {
  return absl::StrCat(folder, "/w", rank, ".", what);
}

absl::Status SetMpirunCommand(const MpiJob& job, ChildSpec& spec) {
  const std::string self = OwnProgram();
  if (self.empty()) return absl::InternalError("cannot read /proc/self/exe");
  // The mpirun in our own folder comes first: a bundle's worker needs the bundle's Open MPI.
  std::vector<std::string> folders = FoldersOnPath();
  folders.emplace(folders.begin(), self.substr(0, self.rfind('/')));
  spec.program = FindProgram("mpirun", folders);
  if (spec.program.empty()) {
    return absl::NotFoundError("mpirun is not on PATH: install Open MPI (Debian: openmpi-bin) or use --sync=star");
  }
  // Without these options Open MPI counts cores itself, refuses more ranks than cores, and binds the ranks, all against
  // the launcher's plan. argv[0] is not a path, because Open MPI derives its installation folder from one, wrongly for
  // /bin/mpirun.
  spec.argv = {"mpirun", "--oversubscribe", "--bind-to", "none", "-np", absl::StrCat(job.rank_count)};
  if (job.quiet) spec.argv.emplace_back("--quiet");
  spec.argv.emplace_back(self);
  spec.argv.push_back(absl::StrCat(kRankFlag, job.folder));
  spec.argv.push_back(absl::StrCat(kCoresFlag, CoreListsText(job.cores)));
  spec.argv.push_back(absl::StrCat(kHangUpFlag, IgnoresHangUp() ? "ignored" : "asks"));
  spec.argv.emplace_back("--");
  spec.argv.insert(spec.argv.end(), job.worker.begin(), job.worker.end());
  return absl::OkStatus();
}

void SetMpiDefaults(int rank_count, int core_count, Environment& environment) {
  if (geteuid() == 0) {
    environment.SetDefault("OMPI_ALLOW_RUN_AS_ROOT", "1");
    environment.SetDefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  // Open MPI spins while it waits. With fewer cores than ranks the spinning rank would take the core of the one
  // awaited.
  if (rank_count > core_count) environment.SetDefault("OMPI_MCA_mpi_yield_when_idle", "1");
  // Without ssh, Open MPI's component for other nodes fails at the start. All ranks of a launcher are on this machine.
  const std::vector<std::string> folders = FoldersOnPath();
  const bool has_agent = !FindProgram("ssh", folders).empty() || !FindProgram("rsh", folders).empty();
  const bool users_agent = environment.Find("OMPI_MCA_plm_rsh_agent") != nullptr;
  if (!has_agent && !users_agent) environment.SetDefault("OMPI_MCA_plm", "^rsh");
  if (!MayReadMemoryOfPeers()) environment.SetDefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
}

void SetMpiMemory(int rank_count, const std::string& folder, Environment& environment, const std::string& usual) {
  constexpr int64_t kRankBytes = 5 << 20;  // Open MPI 4.1 takes 4 MiB for a rank, and leaves a twentieth free
  struct statvfs facts;
  if (statvfs(usual.c_str(), &facts) != 0) return;
  const auto free_bytes = static_cast<int64_t>(facts.f_bavail) * static_cast<int64_t>(facts.f_frsize);
  if (free_bytes < rank_count * kRankBytes) environment.SetDefault("OMPI_MCA_btl_vader_backing_directory", folder);
}

// Open MPI 4.1 opens six for each rank.
int64_t MpirunDescriptors(int rank_count) { return 64 + int64_t{8} * rank_count; }

int CountStartedRanks(const std::string& folder, int rank_count) {
  int started = 0;
  for (int rank = 0; rank < rank_count; ++rank) started += NotedPid(folder, rank) > 0 ? 1 : 0;
  return started;
}

int CountEndedRanks(const std::string& folder, int rank_count, pid_t mpirun) {
  // A rank that mpirun has not collected yet is a zombie, whose parent ParentOf gives as 0; an id that another process
  // has by now has another parent. A rank that has noted nothing yet has not ended.
  int ended = 0;
  for (int rank = 0; rank < rank_count; ++rank) {
    const pid_t pid = NotedPid(folder, rank);
    if (pid > 0 && ParentOf(pid) != mpirun) ++ended;
  }
  return ended;
}

void KillRanks(const std::string& folder, int rank_count, pid_t mpirun) {
  for (int rank = 0; rank < rank_count; ++rank) {
    const pid_t pid = NotedPid(folder, rank);
    // The rank may have ended and its process id may belong to another process by now.
    if (pid > 0 && ParentOf(pid) == mpirun) kill(pid, SIGKILL);
  }
}

bool IsRankCommand(int argc, const char* const* argv) {
  return argc > kRankCommandWords && absl::StartsWith(argv[1], kRankFlag);
}

void RunRank(int argc, const char* const* argv) {
  const char* const rank_text = getenv("OMPI_COMM_WORLD_RANK");
  int rank = -1;
  if (rank_text == nullptr || !absl::SimpleAtoi(rank_text, &rank) || rank < 0) {
    fprintf(stderr, "launch: mpirun gave no OMPI_COMM_WORLD_RANK: use Open MPI's mpirun\n");
    _exit(1);
  }
  const std::string folder(absl::string_view(argv[1]).substr(kRankFlag.size()));
  const std::vector<std::vector<int>> cores =
      ParseCoreLists(std::string(absl::string_view(argv[2]).substr(kCoresFlag.size())));
  PinAndDieWithParent(cores[static_cast<size_t>(rank) % cores.size()], SIGKILL, getppid());
  // The id is written first, so that a rank that fails below counts as ended. exec keeps the process id, so the number
  // is also the worker's.
  std::ofstream(RankPath(folder, rank, "pid")) << getpid() << "\n";
  Redirect(rank, RankPath(folder, rank, "out"), STDOUT_FILENO);
  Redirect(rank, RankPath(folder, rank, "err"), STDERR_FILENO);
  // mpirun gives its ranks every signal at its default, also where nohup has SIGHUP ignored.
  if (absl::EndsWith(argv[3], "ignored")) signal(SIGHUP, SIG_IGN);
  const std::vector<std::string> worker(argv + kRankCommandWords, argv + argc);
  const absl::Status status = Execute(worker.front(), worker, InheritedEnvironment());
  fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  _exit(1);
}

}  // namespace starring
