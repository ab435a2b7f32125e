#include "deploy/launch/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/host/stop_signals.h"

namespace starring {
namespace {

// A pipe of the usual size holds as much.
constexpr size_t kReadBytes = 1 << 16;

}  // namespace

absl::StatusOr<SignalQueue> SignalQueue::Create() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGWINCH}) sigaddset(&signals, number);
  // A blocked signal waits even if it is ignored: SIGHUP under nohup must stay out of the queue.
  for (const int number : StopSignals()) sigaddset(&signals, number);
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0) {
    return absl::InternalError(absl::StrCat("sigprocmask: ", strerror(errno)));
  }
  // A reader of our output that has gone away shows as EPIPE (output.cc), and the job goes on.
  signal(SIGPIPE, SIG_IGN);
  // A blocked signal stays pending until it is read here. Children inherit the mask; SpawnChild resets it in each.
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
    // `left` is rounded up: with 0 the loop would spin through the last millisecond.
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

Supervisor::~Supervisor() {
  EndAll(SIGKILL);
  for (const Child& child : children_) {
    if (child.running) waitpid(child.pid, nullptr, 0);  // returns soon: a process cannot ignore SIGKILL
  }
}

absl::Status Supervisor::Start(const std::string& name, Role role, const ChildSpec& spec) {
  ASSIGN_OR_RETURN(const pid_t pid, SpawnChild(spec), name);
  Child child;
  child.name = name;
  child.role = role;
  child.pid = pid;
  child.started = Clock::now();
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

void Supervisor::AddOutput(UniqueFd fd, int source) {
  outputs_.push_back({.fd = std::move(fd), .source = source, .open = true});
}

bool Supervisor::RunUntil(const Condition& condition, Clock::time_point deadline, std::chrono::milliseconds tick) {
  // The condition may ask about children. Those that have ended already are collected before it is first checked.
  Reap();
  while (!condition()) {
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return false;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    Poll(std::min(left, tick));
  }
  return true;
}

void Supervisor::Poll(std::chrono::milliseconds timeout) {
  // Closed outputs are erased here and not in Read, which is called from a loop over outputs_.
  std::erase_if(outputs_, [](const Output& output) { return !output.open; });
  // `fds` has the signals first, then outputs_ in their order, and the launcher's own output last.
  std::vector<pollfd> fds = {{.fd = signals_->fd(), .events = POLLIN, .revents = 0}};
  for (const Output& output : outputs_) fds.push_back({.fd = output.fd.get(), .events = POLLIN, .revents = 0});
  // poll ignores a negative descriptor, as this one is while no bytes wait.
  fds.push_back({.fd = output_->fd(), .events = POLLOUT, .revents = 0});
  if (poll(fds.data(), fds.size(), static_cast<int>(timeout.count())) <= 0) return;
  if (fds.back().revents != 0) output_->Drain();
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (fds[i + 1].revents != 0) Read(outputs_[i]);
  }
  // Signals are handled last, so that what a child wrote before it ended comes out before a message about its end.
  if (fds[0].revents != 0) HandleSignals();
}

void Supervisor::Read(Output& output) {
  char buffer[kReadBytes];
  const ssize_t got = read(output.fd.get(), buffer, sizeof(buffer));
  if (got > 0) {
    merger_->Feed(output.source, absl::string_view(buffer, static_cast<size_t>(got)));
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {  // a terminal reports its end as EIO
    merger_->Close(output.source);
    output.open = false;
  }
}

void Supervisor::HandleSignals() {
  // Signals of one kind that come before they are read are one signal. So SIGCHLD says that some children have ended,
  // not how many: Reap asks for each.
  for (const int number : signals_->Take()) {
    if (number == SIGWINCH) {
      for (const Output& output : outputs_) CopyWindowSize(output.fd.get());
    } else if (number != SIGCHLD) {
      if (stop_count_++ == 0) stop_signal_ = number;
    }
  }
  Reap();
}

void Supervisor::Reap() {
  bool any = false;
  for (Child& child : children_) {
    int status = 0;
    if (!child.running || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.running = false;
    child.exit_code = ExitCodeOf(status);
    child.ended = Clock::now();
    child.end_order = reap_count_;
    any = true;
  }
  // Children found in one pass share a number: which of them ended first is unknown.
  if (any) ++reap_count_;
}

void Supervisor::Signal(Role role, int signal_number) {
  for (const Child& child : children_) {
    // To the child's process group, so that processes which it has started get the signal too. `running` guards against
    // a process id that belongs to another process by now: the id is free once Reap has seen the end.
    if (child.running && child.role == role) kill(-child.pid, signal_number);
  }
}

void Supervisor::Signal(const std::string& name, int signal_number) {
  for (const Child& child : children_) {
    if (child.running && child.name == name) kill(-child.pid, signal_number);
  }
}

void Supervisor::EndAll(int signal_number) {
  for (Child& child : children_) {
    if (!child.running) continue;
    child.ended_by_us = true;
    kill(-child.pid, signal_number);
  }
}

std::vector<Child> Supervisor::Excusable() const {
  std::vector<Child> failed;
  for (const Child& child : children_) {
    if (!child.running && !child.ended_by_us && !child.excused && child.exit_code != 0) failed.push_back(child);
  }
  return failed;
}

void Supervisor::Excuse(pid_t pid) {
  for (Child& child : children_) child.excused = child.excused || (child.pid == pid && !child.running);
}

void Supervisor::CloseOutputs() {
  for (Output& output : outputs_) {
    // Reads as much as a pipe can hold (16 times 64 KiB) and no more: a grandchild may go on writing for ever.
    for (int i = 0; output.open && i < 16; ++i) {
      pollfd fd = {.fd = output.fd.get(), .events = POLLIN, .revents = 0};
      if (poll(&fd, 1, 0) <= 0) break;
      Read(output);
    }
    if (output.open) merger_->Close(output.source);
  }
  outputs_.clear();
}

bool Supervisor::AnyRunning() const {
  return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
}

bool Supervisor::AnyRunning(Role role) const {
  return std::any_of(children_.begin(), children_.end(),
                     [role](const Child& child) { return child.running && child.role == role; });
}

}  // namespace starring
