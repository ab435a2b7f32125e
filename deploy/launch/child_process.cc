#include "deploy/launch/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/host/machine_limits.h"
#include "common/host/own_cores.h"
#include "common/host/stop_signals.h"
#include "deploy/launch/output.h"

namespace starring {
namespace {

// `count` cores from position `first` on. The count starts over at the end; no core appears twice.
std::vector<int> Take(std::span<const int> cores, int first, int count) {
  const int size = static_cast<int>(cores.size());
  std::set<int> taken;
  for (int i = 0; i < std::min(count, size); ++i) taken.insert(cores[static_cast<size_t>((first + i) % size)]);
  return {taken.begin(), taken.end()};
}

// execve takes pointers to characters that are not const, and does not change them.
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

// Runs in the child until the child becomes the program. If exec fails, writes errno to `error_pipe`. Between fork and
// exec only system calls are safe in a process that had threads, hence no Status here.
[[noreturn]] void BecomeChild(const ChildSpec& spec, pid_t parent, int error_pipe) {
  // The launcher signals this group, and so reaches the program and all processes that it starts.
  setpgid(0, 0);
  PinAndDieWithParent(spec.cores, spec.death_signal, parent);
  // No child reads the launcher's input, which it would share with all others.
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  // Both are copied before either is placed: stderr_fd may be 1, which the first dup2 would overwrite.
  const int out = fcntl(spec.stdout_fd, F_DUPFD_CLOEXEC, 3);
  const int err = fcntl(spec.stderr_fd, F_DUPFD_CLOEXEC, 3);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (spec.kept_fd >= 0) fcntl(spec.kept_fd, F_SETFD, 0);
  // The launcher blocks its signals for signalfd and ignores SIGPIPE; exec would hand both on to the program. The calls
  // for SIGKILL and SIGSTOP fail, which does no harm.
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < SIGRTMIN; ++number) {
    if (number != SIGHUP || !IgnoresHangUp()) sigaction(number, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(spec.program.c_str(), Pointers(spec.argv).data(), Pointers(spec.environment).data());
  const int error = errno;
  if (write(error_pipe, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

}  // namespace

CorePlan PlanCores(std::span<const int> allowed, const CoreDemand& demand) {
  const int size = static_cast<int>(allowed.size());
  // Without a demand of their own, workers share equally the cores that the servers have not asked for, at least one
  // each.
  int per_worker = demand.cores_per_worker;
  if (per_worker == 0) {
    const int counted = CountedCores({.cores = size, .quota = demand.quota});
    per_worker = std::max(1, (counted - demand.server_count * demand.cores_per_server) / demand.worker_count);
  }
  CorePlan plan;
  std::set<int> left(allowed.begin(), allowed.end());
  // Ranges of cores follow each other without a gap. Beyond the last core they start over, which is how processes come
  // to share cores when there are too few.
  for (int worker = 0; worker < demand.worker_count; ++worker) {
    plan.workers.push_back(Take(allowed, worker * per_worker, per_worker));
    for (const int core : plan.workers.back()) left.erase(core);
  }
  // Servers take the last cores, so they share cores with workers only where there are too few.
  const std::vector<int> backwards(allowed.rbegin(), allowed.rend());
  for (int server = 0; server < demand.server_count; ++server) {
    if (demand.cores_per_server > 0) {
      plan.servers.push_back(Take(backwards, server * demand.cores_per_server, demand.cores_per_server));
    } else if (!left.empty()) {
      plan.servers.emplace_back(left.begin(), left.end());
    } else {
      plan.servers.emplace_back(allowed.begin(), allowed.end());
    }
  }
  return plan;
}

std::vector<int> AllowedCores() {
  std::vector<int> cores = OwnCores();
  // A plan needs a core. Where the system tells none, all processes share core 0: slow, but right.
  if (cores.empty()) cores.push_back(0);
  return cores;
}

std::string CoreListText(std::span<const int> cores) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < cores.size();) {
    size_t end = begin + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    parts.push_back(end - begin == 1 ? absl::StrCat(cores[begin]) : absl::StrCat(cores[begin], "-", cores[end - 1]));
    begin = end;
  }
  return absl::StrJoin(parts, ",");
}

std::string CoreListsText(std::span<const std::vector<int>> lists) {
  return absl::StrJoin(lists, ";", [](std::string* out, const std::vector<int>& cores) {
    absl::StrAppend(out, absl::StrJoin(cores, ","));
  });
}

std::vector<std::vector<int>> ParseCoreLists(const std::string& text) {
  std::vector<std::vector<int>> lists;
  for (const absl::string_view list : absl::StrSplit(text, ';')) {
    std::vector<int>& cores = lists.emplace_back();
    for (const absl::string_view word : absl::StrSplit(list, ',', absl::SkipEmpty())) {
      int core = 0;
      if (absl::SimpleAtoi(word, &core)) cores.push_back(core);
    }
  }
  return lists;
}

Environment::Environment(std::vector<std::string> inherited) : variables_(std::move(inherited)) {
  // Other variables of Open MPI (OMPI_MCA_...) are the user's settings and stay.
  std::erase_if(variables_, [](const std::string& variable) {
    return absl::StartsWith(variable, "SLURM_") || absl::StartsWith(variable, "PMI_") ||
           absl::StartsWith(variable, "PMIX_") || absl::StartsWith(variable, "OMPI_COMM_WORLD_");
  });
}

const std::string* Environment::Find(absl::string_view name) const {
  const auto found = std::find_if(variables_.begin(), variables_.end(), [name](absl::string_view variable) {
    return variable.size() > name.size() && variable.substr(0, name.size()) == name && variable[name.size()] == '=';
  });
  return found == variables_.end() ? nullptr : &*found;
}

void Environment::Set(absl::string_view name, absl::string_view value) {
  // An old value is replaced: with two entries of one name it would depend on the program which of them counts.
  if (const std::string* const old = Find(name)) variables_.erase(variables_.begin() + (old - variables_.data()));
  variables_.push_back(absl::StrCat(name, "=", value));
}

void Environment::SetDefault(absl::string_view name, absl::string_view value) {
  if (Find(name) == nullptr) Set(name, value);
}

std::vector<std::string> InheritedEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  return variables;
}

void PinAndDieWithParent(const std::vector<int>& cores, int death_signal, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, death_signal);
  // A parent that died before the line above sends no signal any more.
  if (getppid() != parent) _exit(127);
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);  // a failure is ignored: an unpinned process is slower, not wrong
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
  // The id is taken before the fork: by the time the child asks, it may have been given another parent.
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", strerror(errno)));
  if (pid == 0) BecomeChild(spec, parent, write_end.get());
  // The child calls this too. Doing it here as well guarantees that the group exists when SpawnChild returns, since the
  // caller may signal the group at once; the second of the two calls fails harmlessly.
  setpgid(pid, pid);
  // Without this the pipe would keep a writer, and the read below would never see its end.
  write_end = UniqueFd();
  int error = 0;
  ssize_t got;
  do {
    got = read(read_end.get(), &error, sizeof(error));  // exec closes the pipe: no bytes mean success
  } while (got < 0 && errno == EINTR);
  if (got == 0) return pid;
  // The child has ended without becoming the program; it is collected here, or it would stay a zombie.
  waitpid(pid, nullptr, 0);
  return ExecError(spec.program, error);
}

int ExitCodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace starring
