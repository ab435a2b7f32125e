// Supervisor owns the children of one job: it collects their output and notices when they end. SignalQueue turns the
// launcher's own signals into something to poll for, so that one poll waits for all events and no handler interrupts.
//
// Thread safety: one thread. All events are handled inside RunUntil.
#ifndef STARRING_DEPLOY_LAUNCH_SUPERVISOR_H_
#define STARRING_DEPLOY_LAUNCH_SUPERVISOR_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/launch/child_process.h"
#include "deploy/launch/output.h"

namespace starring {

class SignalQueue {
 public:
  // From now on each signal of StopSignals, SIGCHLD and SIGWINCH wait in the queue instead of interrupting, and SIGPIPE
  // is ignored. Call it once, before any thread or child is started.
  static absl::StatusOr<SignalQueue> Create();

  int fd() const { return fd_.get(); }
  // Waits for `pause`. Returns true, early, if a signal asks the launcher to stop.
  [[nodiscard]] bool StopsWithin(std::chrono::milliseconds pause);
  // The signals that have come since the last call. Never blocks.
  std::vector<int> Take();

 private:
  explicit SignalQueue(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

enum class Role { kWorker, kServer, kMpirun };

struct Child {
  std::string name;  // "w0", "s1", "mpirun"
  Role role = Role::kWorker;
  pid_t pid = 0;
  std::chrono::steady_clock::time_point started;
  std::chrono::steady_clock::time_point ended;  // once it has ended
  bool running = true;
  bool ended_by_us = false;  // EndAll told it to end: its exit code says nothing about the cause of a failure
  bool excused = false;      // its end is no failure of the job
  int exit_code = 0;         // once it has ended; 128 + signal if a signal ended it
  int end_order = -1;        // 0 for the first child seen to end; equal for children seen to end at once
};

class Supervisor {
 public:
  using Clock = std::chrono::steady_clock;
  using Condition = std::function<bool()>;

  // All three outlive the supervisor.
  Supervisor(SignalQueue* signals, LineMerger* merger, OutputQueue* output)
      : signals_(signals), merger_(merger), output_(output) {}
  // Kills the children that still run.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  absl::Status Start(const std::string& name, Role role, const ChildSpec& spec);

  // Feeds all that can be read from `fd`, until its end, to this source of the merger.
  void AddOutput(UniqueFd fd, int source);

  // Handles events until `condition` holds. The condition is checked after each event, and at least once every `tick`.
  // Returns false if the deadline passes first.
  bool RunUntil(const Condition& condition, Clock::time_point deadline, std::chrono::milliseconds tick);

  // Sends a signal to the process groups of all running children of this role, or of this name.
  void Signal(Role role, int signal_number);
  void Signal(const std::string& name, int signal_number);
  // Sends a signal to all children that still run, and sets their Child::ended_by_us.
  void EndAll(int signal_number);
  // Passes on what the children wrote before they ended, then stops reading. It does not wait for the pipes' ends,
  // because the children's own children may still hold the pipes open.
  void CloseOutputs();

  const std::vector<Child>& children() const { return children_; }
  // Those that have failed by themselves and were not excused.
  std::vector<Child> Excusable() const;
  void Excuse(pid_t pid);
  bool AnyRunning() const;
  bool AnyRunning(Role role) const;
  // How often a signal of StopSignals came, and which of them came first (0: none came).
  int stop_count() const { return stop_count_; }
  int stop_signal() const { return stop_signal_; }

 private:
  struct Output {
    UniqueFd fd;
    int source = 0;
    bool open = true;
  };
  void Poll(std::chrono::milliseconds timeout);
  void Read(Output& output);
  void HandleSignals();
  void Reap();

  SignalQueue* const signals_;
  LineMerger* const merger_;
  OutputQueue* const output_;  // where the merger writes
  std::vector<Child> children_;
  std::vector<Output> outputs_;
  int reap_count_ = 0;
  int stop_count_ = 0;
  int stop_signal_ = 0;
};

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_SUPERVISOR_H_
