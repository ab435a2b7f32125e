// Starts a process that cannot outlive its parent and that a terminal's Ctrl-C does not reach.
#ifndef STARRING_DEPLOY_LAUNCH_CHILD_PROCESS_H_
#define STARRING_DEPLOY_LAUNCH_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace starring {

struct ChildSpec {
  std::string program;  // its path
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> cores;                // empty: the parent's
  int stdout_fd = 1;                     // duplicated into the child
  int stderr_fd = 2;                     // likewise
  int death_signal = 9;                  // what the child gets when the parent dies
};

// The child leads a process group of its own, reads /dev/null, has every signal unblocked and at its default.
// NotFound or Internal, with path and reason, when it cannot be started.
absl::StatusOr<pid_t> SpawnChild(const ChildSpec& spec);

// What SpawnChild does to a child, done to this process: pins it (not with empty `cores`) and has it killed by
// `death_signal` when its parent dies; at once if `parent` is dead already.
void AdoptFate(const std::vector<int>& cores, int death_signal, pid_t parent);

// Replaces this process. Returns the reason where that fails.
absl::Status Execute(const std::string& program, const std::vector<std::string>& argv,
                     const std::vector<std::string>& environment);

// The exit code that a shell would show for a status from waitpid: 128 + signal for a killed process.
int ExitCodeOf(int wait_status);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_CHILD_PROCESS_H_
