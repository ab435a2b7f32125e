#include "deploy/launch/signal_queue.h"

#include <errno.h>
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

std::vector<int> SignalQueue::Take() {
  std::vector<int> numbers;
  struct signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) numbers.push_back(static_cast<int>(info.ssi_signo));
  return numbers;
}

}  // namespace starring
