// One attempt at a job: servers, then workers or mpirun, until all have ended.
#ifndef STARRING_DEPLOY_LAUNCH_JOB_H_
#define STARRING_DEPLOY_LAUNCH_JOB_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/launch/core_plan.h"
#include "deploy/launch/environment.h"
#include "deploy/launch/launch_options.h"
#include "deploy/launch/line_merger.h"
#include "deploy/launch/output_queue.h"
#include "deploy/launch/signal_queue.h"
#include "deploy/launch/supervisor.h"

namespace starring {

struct JobOutcome {
  int exit_code = 0;
  bool stopped = false;  // by a signal to the launcher
};

class Job {
 public:
  // All outlive the job. `folder` is an empty one for pipes and port files, of this attempt alone.
  struct Context {
    const LaunchOptions* options = nullptr;
    const CorePlan* cores = nullptr;
    SignalQueue* signals = nullptr;
    LineMerger* merger = nullptr;
    OutputQueue* output = nullptr;  // where the merger writes
    std::string folder;
    std::vector<std::string> worker_flags;
    std::vector<std::string> star_flags;  // of servers and workers both
  };
  explicit Job(const Context& context);

  // Returns when every child has ended. A child's exit code other than 0 is no error of this call: the outcome has the
  // code of the child that failed first. An error is one of starting them.
  absl::StatusOr<JobOutcome> Run();

 private:
  absl::Status Start();
  absl::Status StartServers();
  absl::StatusOr<std::vector<std::string>> AwaitServerAddresses();
  absl::Status StartWorkers(const std::vector<std::string>& addresses);
  absl::Status StartMpirun();
  // With environment and outputs: prefixed lines, but worker 0's standard output as it is.
  absl::Status StartChild(const std::string& name, Role role, ChildSpec spec);
  void AppendWatching(int first_port, std::vector<std::string>* command) const;
  std::vector<std::string> WorkerCommand() const;

  void RunWorkers();
  bool MpirunIsOverdue();
  void StopPolitely();
  void EndServers();
  void EndCheck();
  void EndEverybody();
  const Child* FirstFailure() const;
  bool WorkersDone() const;

  const Context context_;
  const LaunchOptions& options_;
  Environment environment_;
  Supervisor supervisor_;
  std::vector<UniqueFd> held_open_;
  // MPI: how many ranks had ended when that was looked at last, and when it changed.
  int ended_ranks_ = 0;
  std::chrono::steady_clock::time_point ended_ranks_since_;
};

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_JOB_H_
