// Job: one attempt at a job. It starts servers, then workers or mpirun, and returns when all have ended. RestartPause:
// how long the launcher waits before the next attempt.
//
// The launcher is C++ although nothing in it needs speed: it is part of //deploy:bundle, which promises to run on a
// machine without Python.
//
// Thread safety: one thread.
#ifndef STARRING_DEPLOY_LAUNCH_JOB_H_
#define STARRING_DEPLOY_LAUNCH_JOB_H_

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/transport_security.h"
#include "deploy/launch/child_process.h"
#include "deploy/launch/launch_options.h"
#include "deploy/launch/output.h"
#include "deploy/launch/run_watch.h"
#include "deploy/launch/supervisor.h"

namespace starring {

struct JobOutcome {
  int exit_code = 0;
  bool stopped = false;  // by a signal to the launcher
};

// An attempt that fails soon after its start will probably fail again, because its cause needs a moment to pass. So the
// first restart comes at once, and each further one waits twice as long as the one before, until an attempt lasts.
class RestartPause {
 public:
  using Clock = std::chrono::steady_clock;
  struct Limits {
    std::chrono::milliseconds soon;  // an attempt that takes this long has lasted
    std::chrono::milliseconds min;
    std::chrono::milliseconds max;
  };
  // The limits for a job, which fails as a whole.
  static constexpr Limits kOfJob{
      .soon = std::chrono::seconds(3), .min = std::chrono::milliseconds(250), .max = std::chrono::seconds(8)};
  // The limits for one process of an elastic job. With a broken device it may reach its first step each time.
  static constexpr Limits kOfProcess{
      .soon = std::chrono::minutes(1), .min = std::chrono::seconds(1), .max = std::chrono::minutes(1)};

  explicit RestartPause(const Limits& limits) : limits_(limits) {}

  // How long to wait after an attempt that took `attempt`.
  [[nodiscard]] std::chrono::milliseconds After(Clock::duration attempt) {
    if (attempt >= limits_.soon) pause_ = std::chrono::milliseconds(0);
    const std::chrono::milliseconds pause = pause_;
    pause_ = std::clamp(2 * pause_, limits_.min, limits_.max);
    return pause;
  }

 private:
  const Limits limits_;
  std::chrono::milliseconds pause_{0};
};

class Job {
 public:
  // All pointers outlive the job. `folder` holds this attempt's pipes and port files; it must be empty.
  struct Context {
    const LaunchOptions* options = nullptr;
    const CorePlan* cores = nullptr;
    SignalQueue* signals = nullptr;
    LineMerger* merger = nullptr;
    OutputQueue* output = nullptr;  // where the merger writes
    std::string folder;
    std::string state_dir;  // elastic: of the servers
    std::vector<std::string> worker_flags;
    std::vector<std::string> admission_flags;  // for all processes that connect by gRPC or TCP
    TransportSecurity security;                // the contents of those flags' files
  };
  explicit Job(const Context& context);

  // Returns when every child has ended. If a child fails, the call succeeds and the outcome has the exit code of the
  // child that failed first. The call fails if a child could not be started.
  absl::StatusOr<JobOutcome> Run();

 private:
  absl::Status Start();
  // `meeting`: as of StartWorkers. Each server also gets its number.
  absl::Status StartServers(const std::vector<std::string>& meeting);
  absl::Status StartServer(int shard, const std::vector<std::string>& meeting);
  absl::StatusOr<std::vector<std::string>> AwaitServerAddresses();
  bool IsElastic() const { return options_.elastic || !options_.join.empty(); }
  // `meeting`: the flags by which the workers find their servers or each other; empty for a worker alone.
  // Worker 0 inherits `rendezvous_fd`; -1: none.
  absl::Status StartWorkers(const std::vector<std::string>& meeting, int rendezvous_fd = -1);
  absl::Status StartMpirun();
  absl::Status StartElastic();
  // Restarts the dead processes that may be restarted. Returns true if a process is dead without which the job cannot
  // go on.
  bool RestartProcesses();
  // Whether the pause of `dead` is over.
  bool MayRestart(const Child& dead, RestartPause* pause);
  // Whether an elastic run, or with --join our part of it, can do without a worker of ours that has failed.
  bool CanGoOn() const;
  // Shard 0 of an elastic run that has ended by itself, which ends the run: its exit code says how. Null: the run goes
  // on, also if a signal has ended shard 0.
  const Child* EndOfRun() const;
  // Ends the servers that the watch has found stuck. They are then started again.
  void EndStuckServers();
  // Gives the child its environment and outputs. Lines get a prefix, except those of worker 0's standard output.
  absl::Status StartChild(const std::string& name, Role role, ChildSpec spec);
  void AppendPortRange(std::vector<std::string>* command) const;
  void AppendWatching(int first_port, std::vector<std::string>* command) const;
  std::vector<std::string> WorkerCommand() const;

  void RunWorkers();
  bool IsOver();
  std::chrono::milliseconds Tick() const;  // the period of IsOver's checks
  bool MpirunIsOverdue();
  bool RanksHaveStarted();
  void EndMpirunWithoutRanks();
  void StopPolitely();
  void EndServers();
  void EndCheck();
  void EndAllProcesses();
  const Child* FirstFailure() const;
  bool WorkersDone() const;

  const Context context_;
  const LaunchOptions& options_;
  Environment environment_;
  Supervisor supervisor_;
  std::vector<UniqueFd> held_open_;
  // Elastic: how each process was started, by its name.
  struct Startable {
    Role role = Role::kWorker;
    ChildSpec spec;
    RestartPause pause{RestartPause::kOfProcess};
  };
  std::map<std::string, Startable> startable_;
  std::map<pid_t, RestartPause::Clock::time_point> restart_at_;  // of those that ended by themselves
  int process_restarts_ = 0;
  std::unique_ptr<RunWatch> watch_;  // null: nothing is started again
  // MPI: how many ranks had started, and had ended, at the last check, and when the second number last changed.
  int started_ranks_ = 0;
  int ended_ranks_ = 0;
  std::chrono::steady_clock::time_point ended_ranks_since_;
  bool ranks_are_missing_ = false;  // at the join deadline
};

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_JOB_H_
