#include "deploy/launch/output_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace starring {
namespace {

constexpr std::chrono::milliseconds kLastWords{1000};

// Another way to the terminal or pipe behind `fd`, which does not wait. A file is left alone: it never makes us wait
// for a reader, and a second way would have a position of its own.
UniqueFd OpenAgain(int fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0 || S_ISREG(status.st_mode)) return UniqueFd();
  return UniqueFd(open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

OutputQueue::OutputQueue() : out_(OpenAgain(STDOUT_FILENO)), err_(OpenAgain(STDERR_FILENO)) {}

OutputQueue::~OutputQueue() {
  const auto end = std::chrono::steady_clock::now() + kLastWords;
  while (!pieces_.empty()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd ready = {.fd = fd(), .events = POLLOUT, .revents = 0};
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) return;
    Drain();
  }
}

int OutputQueue::DescriptorOf(OutputStream stream) const {
  const bool is_out = stream == OutputStream::kOut;
  const int ours = (is_out ? out_ : err_).get();
  if (ours >= 0) return ours;
  return is_out ? STDOUT_FILENO : STDERR_FILENO;
}

void OutputQueue::Write(OutputStream stream, absl::string_view bytes) {
  if (kept_bytes_ + bytes.size() > kLaunchOutputBytesMax) {
    lost_bytes_ += static_cast<int64_t>(bytes.size());
    return;
  }
  kept_bytes_ += bytes.size();
  pieces_.push_back({.stream = stream, .bytes = std::string(bytes)});
  Drain();
}

void OutputQueue::Drain() {
  while (!pieces_.empty()) {
    Piece& piece = pieces_.front();
    const ssize_t written = write(DescriptorOf(piece.stream), piece.bytes.data(), piece.bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return;
    // Any other error: nobody reads any more, and the job goes on without.
    const size_t gone = written < 0 ? piece.bytes.size() : static_cast<size_t>(written);
    kept_bytes_ -= gone;
    piece.bytes.erase(0, gone);
    if (!piece.bytes.empty()) continue;
    pieces_.pop_front();
    if (!pieces_.empty() || lost_bytes_ == 0) continue;
    const int64_t lost = std::exchange(lost_bytes_, 0);
    Write(OutputStream::kErr, absl::StrCat("launch: ", lost, " bytes of output are left out here: nobody read them\n"));
    return;
  }
}

}  // namespace starring
