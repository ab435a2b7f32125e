#include "common/host/stop_signals.h"

#include <signal.h>

namespace starring {

bool IgnoresHangUp() {
  struct sigaction action = {};
  return sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

std::vector<int> StopSignals() {
  std::vector<int> numbers = {SIGINT, SIGTERM, SIGUSR1};
  if (!IgnoresHangUp()) numbers.push_back(SIGHUP);
  return numbers;
}

}  // namespace starring
