#include "deploy/launch/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace starring {
namespace {

constexpr size_t kReadBytes = 1 << 16;

}  // namespace

Supervisor::~Supervisor() {
  EndAll(SIGKILL);
  for (const Child& child : children_) {
    if (child.running) waitpid(child.pid, nullptr, 0);  // does not wait long: SIGKILL cannot be refused
  }
}

absl::Status Supervisor::Start(const std::string& name, Role role, const ChildSpec& spec) {
  ASSIGN_OR_RETURN(const pid_t pid, SpawnChild(spec), name);
  Child child;
  child.name = name;
  child.role = role;
  child.pid = pid;
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

void Supervisor::AddOutput(UniqueFd fd, int source) {
  outputs_.push_back({.fd = std::move(fd), .source = source, .open = true});
}

bool Supervisor::RunUntil(const Condition& condition, Clock::time_point deadline, std::chrono::milliseconds tick) {
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
  std::erase_if(outputs_, [](const Output& output) { return !output.open; });
  std::vector<pollfd> fds = {{.fd = signals_->fd(), .events = POLLIN, .revents = 0}};
  for (const Output& output : outputs_) fds.push_back({.fd = output.fd.get(), .events = POLLIN, .revents = 0});
  fds.push_back({.fd = output_->fd(), .events = POLLOUT, .revents = 0});
  if (poll(fds.data(), fds.size(), static_cast<int>(timeout.count())) <= 0) return;
  if (fds.back().revents != 0) output_->Drain();
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (fds[i + 1].revents != 0) Read(outputs_[i]);
  }
  if (fds[0].revents != 0) HandleSignals();
}

void Supervisor::Read(Output& output) {
  char buffer[kReadBytes];
  const ssize_t got = read(output.fd.get(), buffer, sizeof(buffer));
  if (got > 0) {
    merger_->Feed(output.source, absl::string_view(buffer, static_cast<size_t>(got)));
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {  // EIO is a terminal's end of file
    merger_->Close(output.source);
    output.open = false;
  }
}

void Supervisor::HandleSignals() {
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
    child.end_order = reap_count_;
    any = true;
  }
  if (any) ++reap_count_;
}

void Supervisor::Signal(Role role, int signal_number) {
  for (const Child& child : children_) {
    if (child.running && child.role == role) kill(-child.pid, signal_number);
  }
}

void Supervisor::EndAll(int signal_number) {
  for (Child& child : children_) {
    if (!child.running) continue;
    child.ended_by_us = true;
    kill(-child.pid, signal_number);
  }
}

void Supervisor::CloseOutputs() {
  for (Output& output : outputs_) {
    // As much as a pipe holds, and no more: somebody may go on writing for ever.
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
