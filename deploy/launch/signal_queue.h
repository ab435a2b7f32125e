// The launcher's signals as something to poll for.
#ifndef STARRING_DEPLOY_LAUNCH_SIGNAL_QUEUE_H_
#define STARRING_DEPLOY_LAUNCH_SIGNAL_QUEUE_H_

#include <chrono>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/launch/output_channel.h"

namespace starring {

class SignalQueue {
 public:
  // From now on SIGINT, SIGTERM, SIGHUP, SIGCHLD and SIGWINCH wait in the queue instead of interrupting, and SIGPIPE is
  // ignored. Call once, before anything else starts threads or children.
  static absl::StatusOr<SignalQueue> Create();

  int fd() const { return fd_.get(); }
  // Waits for `pause`, or until a signal that asks to stop has come: then true.
  bool StopsWithin(std::chrono::milliseconds pause);
  // Those that have come since the last call; never blocks.
  std::vector<int> Take();

 private:
  explicit SignalQueue(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_SIGNAL_QUEUE_H_
