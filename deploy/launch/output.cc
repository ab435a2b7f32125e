#include "deploy/launch/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"

namespace starring {
namespace {

absl::Status SystemError(absl::string_view call) {
  return absl::InternalError(absl::StrCat(call, ": ", strerror(errno)));
}

// Carriage return, then "erase to the end of the line".
constexpr absl::string_view kEraseRow = "\r\033[K";

// How long the destructor waits for a reader: the cause of a failure is often among the last lines.
constexpr std::chrono::milliseconds kLastWords{1000};

// A second, non-blocking descriptor for the terminal or pipe of `fd`. O_NONBLOCK on `fd` itself would also affect the
// shell, which shares it. A file needs no second descriptor: it has no reader to wait for, and the second descriptor
// would have a position of its own and overwrite.
UniqueFd OpenAgain(int fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0 || S_ISREG(status.st_mode)) return UniqueFd();
  return UniqueFd(open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<OutputChannel> CreatePipe() {
  int ends[2];
  // O_CLOEXEC: a pipe has no end as long as any process has its write end, so no other child may inherit it.
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe2");
  OutputChannel channel{.read_end = UniqueFd(ends[0]), .write_end = UniqueFd(ends[1]), .write_path = ""};
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return SystemError("fcntl");  // the child's end may block
  return channel;
}

absl::StatusOr<OutputChannel> CreateFifo(const std::string& path) {
  if (mkfifo(path.c_str(), 0600) != 0) return SystemError(absl::StrCat("mkfifo ", path));
  // Opened for writing too: without any writer, poll would report an end of file before the rank has opened its end.
  OutputChannel channel{.read_end = UniqueFd(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC)),
                        .write_end = UniqueFd(),
                        .write_path = path};
  if (channel.read_end.get() < 0) return SystemError(absl::StrCat("open ", path));
  return channel;
}

absl::StatusOr<OutputChannel> CreateTerminal() {
  OutputChannel channel{
      .read_end = UniqueFd(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)), .write_end = UniqueFd(), .write_path = ""};
  const int master = channel.read_end.get();
  char path[64];
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0 || ptsname_r(master, path, sizeof(path)) != 0) {
    return SystemError("posix_openpt");
  }
  // The child's end is opened before the child starts, because the settings below must hold for its first byte.
  // O_NOCTTY: a launcher without a terminal must not get this one as its own.
  channel.write_end = UniqueFd(open(path, O_RDWR | O_NOCTTY | O_CLOEXEC));
  channel.write_path = path;
  struct termios settings;
  if (channel.write_end.get() < 0 || tcgetattr(channel.write_end.get(), &settings) != 0) return SystemError(path);
  cfmakeraw(&settings);  // else "\n" becomes "\r\n" twice: here and in our own terminal
  if (tcsetattr(channel.write_end.get(), TCSANOW, &settings) != 0) return SystemError(path);
  if (fcntl(master, F_SETFL, O_NONBLOCK) != 0) return SystemError("fcntl");
  CopyWindowSize(master);
  return channel;
}

void CopyWindowSize(int fd) {
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) ioctl(fd, TIOCSWINSZ, &size);
}

int LineMerger::AddPrefixed(std::string prefix, OutputStream stream) {
  sources_.push_back({.prefix = std::move(prefix), .stream = stream, .live = false, .partial = ""});
  return static_cast<int>(sources_.size()) - 1;
}

int LineMerger::AddLive() {
  sources_.push_back({.prefix = "", .stream = OutputStream::kOut, .live = true, .partial = ""});
  return static_cast<int>(sources_.size()) - 1;
}

void LineMerger::Feed(int source_number, absl::string_view bytes) {
  Source& source = sources_[static_cast<size_t>(source_number)];
  if (source.live) return FeedLive(bytes);
  source.partial.append(bytes.data(), bytes.size());
  size_t begin = 0;
  for (size_t end; (end = source.partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EmitLine(source, absl::string_view(source.partial).substr(begin, end - begin));
  }
  // The rest has no line end yet. If it is longer than a line may be, it comes out in pieces.
  for (; source.partial.size() - begin > kLineBytesMax; begin += kLineBytesMax) {
    EmitLine(source, absl::string_view(source.partial).substr(begin, kLineBytesMax));
  }
  // Erased once for all lines: erasing at each line would move the rest each time.
  source.partial.erase(0, begin);
}

void LineMerger::Close(int source_number) {
  Source& source = sources_[static_cast<size_t>(source_number)];
  if (source.live && !live_row_.empty()) FeedLive("\n");
  if (!source.partial.empty()) EmitLine(source, source.partial);
  source.partial.clear();
}

void LineMerger::Print(absl::string_view line) {
  EmitLine({.prefix = "", .stream = OutputStream::kErr, .live = false, .partial = ""}, line);
}

void LineMerger::EmitLine(const Source& source, absl::string_view line) {
  // The live row is erased, the line takes its place, and the row is drawn again below.
  if (!live_row_.empty()) write_(OutputStream::kOut, kEraseRow);
  const std::string stamp = source.stream == OutputStream::kErr ? LogStampNow(time_) : "";
  write_(source.stream, absl::StrCat(stamp, source.prefix, line, "\n"));
  if (!live_row_.empty()) write_(OutputStream::kOut, absl::StrCat(live_row_, live_row_complete_ ? "\r" : ""));
}

// Follows the bytes as a terminal would: after a carriage return the row stays until the next byte begins to overwrite
// it.
void LineMerger::FeedLive(absl::string_view bytes) {
  write_(OutputStream::kOut, bytes);
  for (const char c : bytes) {
    if (c == '\n') {
      live_row_.clear();
      live_row_complete_ = false;
    } else if (c == '\r') {
      live_row_complete_ = true;
    } else {
      if (live_row_complete_) live_row_.clear();
      live_row_complete_ = false;
      // A source that never ends its row must not fill the memory.
      if (live_row_.size() < kLineBytesMax) live_row_ += c;
    }
  }
}

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
  // After the first loss everything is lost until the queue is empty: the gap is in one place, where Drain reports it.
  if (lost_bytes_ > 0 || kept_bytes_ + bytes.size() > kLaunchOutputBytesMax) {
    lost_bytes_ += static_cast<int64_t>(bytes.size());
    return;
  }
  // All bytes go through the queue, so none overtake those that wait.
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
    // After any other error there is no reader any more. The job goes on without a reader, and the bytes are dropped.
    const size_t gone = written < 0 ? piece.bytes.size() : static_cast<size_t>(written);
    kept_bytes_ -= gone;
    piece.bytes.erase(0, gone);
    if (!piece.bytes.empty()) continue;
    pieces_.pop_front();
    if (!pieces_.empty() || lost_bytes_ == 0) continue;
    // The line about lost bytes comes after the last kept byte, where the gap is.
    const int64_t lost = std::exchange(lost_bytes_, 0);
    // Write calls this function again, which drains what it can.
    Write(OutputStream::kErr,
          absl::StrCat("launch: ", lost, " bytes of output are left out here: they were not read in time\n"));
    return;
  }
}

}  // namespace starring
