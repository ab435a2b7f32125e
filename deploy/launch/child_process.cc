#include "deploy/launch/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "deploy/launch/output_channel.h"

namespace starring {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status ExecError(const std::string& path, int error) {
  const std::string text = absl::StrCat("cannot start ", path, ": ", strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::InternalError(text);
}

// Runs in the child, until it becomes the program; leaves errno in `error_pipe` where it does not.
[[noreturn]] void BecomeChild(const ChildSpec& spec, pid_t parent, int error_pipe) {
  setpgid(0, 0);
  AdoptFate(spec.cores, spec.death_signal, parent);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  // Copies first: the descriptor for stderr may be 1.
  const int out = fcntl(spec.stdout_fd, F_DUPFD_CLOEXEC, 3);
  const int err = fcntl(spec.stderr_fd, F_DUPFD_CLOEXEC, 3);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < SIGRTMIN; ++number) sigaction(number, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(spec.program.c_str(), Pointers(spec.argv).data(), Pointers(spec.environment).data());
  const int error = errno;
  if (write(error_pipe, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

}  // namespace

void AdoptFate(const std::vector<int>& cores, int death_signal, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) _exit(127);  // it died before the line above
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);  // unpinned is slower, not wrong
}

absl::Status Execute(const std::string& program, const std::vector<std::string>& argv,
                     const std::vector<std::string>& environment) {
  execve(program.c_str(), Pointers(argv).data(), Pointers(environment).data());
  return ExecError(program, errno);
}

absl::StatusOr<pid_t> SpawnChild(const ChildSpec& spec) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", strerror(errno)));
  if (pid == 0) BecomeChild(spec, parent, write_end.get());
  // Here too, so that the group exists when SpawnChild returns; fails harmlessly once the child has done it.
  setpgid(pid, pid);
  write_end = UniqueFd();
  int error = 0;
  ssize_t got;
  do {
    got = read(read_end.get(), &error, sizeof(error));  // ends with exec, which closes the pipe
  } while (got < 0 && errno == EINTR);
  if (got == 0) return pid;
  waitpid(pid, nullptr, 0);
  return ExecError(spec.program, error);
}

int ExitCodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace starring
