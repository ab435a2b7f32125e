// Owns the children of one job: collects their output, notices their end, and the launcher's own signals.
//
// Thread safety: one thread. Everything happens inside RunUntil, around one poll.
#ifndef STARRING_DEPLOY_LAUNCH_SUPERVISOR_H_
#define STARRING_DEPLOY_LAUNCH_SUPERVISOR_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "deploy/launch/child_process.h"
#include "deploy/launch/line_merger.h"
#include "deploy/launch/output_channel.h"
#include "deploy/launch/output_queue.h"
#include "deploy/launch/signal_queue.h"

namespace starring {

enum class Role { kWorker, kServer, kMpirun };

struct Child {
  std::string name;  // "w0", "s1", "mpirun"
  Role role = Role::kWorker;
  pid_t pid = 0;
  bool running = true;
  bool ended_by_us = false;  // told to end by EndAll: its exit code says nothing
  int exit_code = 0;         // once it has ended; 128 + signal where a signal ended it
  int end_order = -1;        // 0 for the first that was seen to end; equal where several were seen at once
};

class Supervisor {
 public:
  using Clock = std::chrono::steady_clock;
  using Condition = std::function<bool()>;

  // All outlive the supervisor.
  Supervisor(SignalQueue* signals, LineMerger* merger, OutputQueue* output)
      : signals_(signals), merger_(merger), output_(output) {}
  // Kills what still runs.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  absl::Status Start(const std::string& name, Role role, const ChildSpec& spec);

  // Whatever can be read from `fd`, until its end, goes to this source of the merger.
  void AddOutput(UniqueFd fd, int source);

  // Handles events until `condition` holds; it is asked after each event, and every `tick` at least. Returns false when
  // the deadline passed first.
  bool RunUntil(const Condition& condition, Clock::time_point deadline, std::chrono::milliseconds tick);

  // To the process groups of all running children of this role.
  void Signal(Role role, int signal_number);
  // To everybody who still runs; see Child::ended_by_us.
  void EndAll(int signal_number);
  // Hands on what the children wrote before they ended, and stops reading: their own children may hold the pipes.
  void CloseOutputs();

  const std::vector<Child>& children() const { return children_; }
  bool AnyRunning() const;
  bool AnyRunning(Role role) const;
  // How often SIGINT, SIGTERM or SIGHUP came, and which was the first (0: none).
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
