// The cores and the environment that the launcher gives a child process, and how it starts the process.
#ifndef STARRING_DEPLOY_LAUNCH_CHILD_PROCESS_H_
#define STARRING_DEPLOY_LAUNCH_CHILD_PROCESS_H_

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring {

struct CoreDemand {
  int worker_count = 1;
  int server_count = 0;
  int cores_per_worker = 0;  // 0: an equal share of the cores that the servers did not ask for
  // 0: all servers share the cores that the workers leave, or all cores if the workers leave none.
  int cores_per_server = 0;
  double quota = 0;  // see CoreLimits: with less than all cores, a worker's equal share is a share of the quota
};

struct CorePlan {
  std::vector<std::vector<int>> workers;  // by rank
  std::vector<std::vector<int>> servers;  // by shard
};

// Workers take cores from the front of `allowed`, one after the other. Servers that asked for a number of cores take
// theirs from the back. If the demand exceeds the cores, the count starts over at the front, so that the numbers of
// processes on any two cores differ by at most one. A quota makes shares smaller and leaves no core unused: the kernel
// grants its time on whichever cores.
// REQUIRES: `allowed` is not empty; worker_count >= 1; the other numbers >= 0.
[[nodiscard]] CorePlan PlanCores(std::span<const int> allowed, const CoreDemand& demand);

// The cores that this process may run on, ascending.
std::vector<int> AllowedCores();

// "0-3,5", as taskset writes it.
std::string CoreListText(std::span<const int> cores);
// The lists of several processes, "0,1;2,3", as run records contain them.
std::string CoreListsText(std::span<const std::vector<int>> lists);
// Reads the output of CoreListsText. REQUIRES: `text` is such an output.
std::vector<std::vector<int>> ParseCoreLists(const std::string& text);

// A child's environment: "NAME=value" strings. Thread safety: one thread.
class Environment {
 public:
  // A copy of `inherited` without the variables by which another launcher describes this process (SLURM_*, PMI_*,
  // PMIX_*, OMPI_COMM_WORLD_*): the children are not that launcher's ranks.
  explicit Environment(std::vector<std::string> inherited);

  void Set(absl::string_view name, absl::string_view value);
  // Does nothing if the user has set `name`.
  void SetDefault(absl::string_view name, absl::string_view value);
  // The whole "NAME=value", or null if `name` is not set.
  const std::string* Find(absl::string_view name) const;

  const std::vector<std::string>& variables() const { return variables_; }

 private:
  std::vector<std::string> variables_;
};

// The environment of this process.
std::vector<std::string> InheritedEnvironment();

struct ChildSpec {
  std::string program;  // its path
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> cores;                // empty: the parent's cores
  int stdout_fd = 1;                     // duplicated into the child
  int stderr_fd = 2;                     // duplicated into the child
  int kept_fd = -1;                      // open in the child under the same number; -1: none
  int death_signal = 9;                  // the signal that the child gets when the parent dies
};

// The child leads a process group of its own, so that a terminal's Ctrl-C does not reach it. It reads /dev/null, and
// every signal is unblocked and at its default, but SIGHUP, which stays ignored where nohup has it ignored. NotFound or
// Internal, with path and reason, if it cannot be started.
absl::StatusOr<pid_t> SpawnChild(const ChildSpec& spec);

// Pins this process to `cores` (unless they are empty), and has the kernel send it `death_signal` when its parent dies.
// Ends this process at once if its parent is no longer `parent`. SpawnChild does this to each child.
void PinAndDieWithParent(const std::vector<int>& cores, int death_signal, pid_t parent);

// Replaces this process by `program`. Returns only if that fails, with the reason.
absl::Status Execute(const std::string& program, const std::vector<std::string>& argv,
                     const std::vector<std::string>& environment);

// The exit code that a shell would show for a status from waitpid: 128 + signal for a killed process.
[[nodiscard]] int ExitCodeOf(int wait_status);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_CHILD_PROCESS_H_
