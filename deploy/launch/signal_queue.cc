#include "deploy/launch/signal_queue.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace starring {

absl::StatusOr<SignalQueue> SignalQueue::Create() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGWINCH}) sigaddset(&signals, number);
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0) {
    return absl::InternalError(absl::StrCat("sigprocmask: ", strerror(errno)));
  }
  signal(SIGPIPE, SIG_IGN);
  UniqueFd fd(signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
  if (fd.get() < 0) return absl::InternalError(absl::StrCat("signalfd: ", strerror(errno)));
  return SignalQueue(std::move(fd));
}

bool SignalQueue::StopsWithin(std::chrono::milliseconds pause) {
  const auto end = std::chrono::steady_clock::now() + pause;
  while (true) {
    for (const int number : Take()) {
      if (number != SIGCHLD && number != SIGWINCH) return true;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd ready = {.fd = fd_.get(), .events = POLLIN, .revents = 0};
    poll(&ready, 1, static_cast<int>(left.count()));
  }
}

std::vector<int> SignalQueue::Take() {
  std::vector<int> numbers;
  struct signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) numbers.push_back(static_cast<int>(info.ssi_signo));
  return numbers;
}

}  // namespace starring
