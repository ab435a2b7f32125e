// The ways in which a child's output reaches the launcher.
#ifndef STARRING_DEPLOY_LAUNCH_OUTPUT_CHANNEL_H_
#define STARRING_DEPLOY_LAUNCH_OUTPUT_CHANNEL_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace starring {

// A file descriptor that is closed with its owner.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  int get() const { return fd_; }

 private:
  int fd_;
};

// Descriptors are close-on-exec, and reading never blocks.
struct OutputChannel {
  UniqueFd read_end;
  UniqueFd write_end;      // the launcher closes it once the child has its copy
  std::string write_path;  // what another process opens to get the write end; empty for a pipe
};

absl::StatusOr<OutputChannel> CreatePipe();
// A pipe with a name, for a process that is not our child. `path` must not exist.
absl::StatusOr<OutputChannel> CreateFifo(const std::string& path);
// A terminal that passes bytes on as they are and has the size of the one on our own standard output.
absl::StatusOr<OutputChannel> CreateTerminal();

// Gives the terminal behind `fd` the size of the one on our own standard output; nothing happens where either is none.
void CopyWindowSize(int fd);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_OUTPUT_CHANNEL_H_
