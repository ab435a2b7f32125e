// The way of a child's output to the launcher's terminal or file: OutputChannel (child to launcher), LineMerger (many
// sources into two streams), OutputQueue (the launcher's own standard output and error, without ever waiting).
//
// Thread safety: each object belongs to one thread.
#ifndef STARRING_DEPLOY_LAUNCH_OUTPUT_H_
#define STARRING_DEPLOY_LAUNCH_OUTPUT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/host/log.h"

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
  std::string write_path;  // the path by which another process opens the write end; empty for a pipe
};

absl::StatusOr<OutputChannel> CreatePipe();
// A pipe with a name, for a process that is not our child. `path` must not exist.
absl::StatusOr<OutputChannel> CreateFifo(const std::string& path);
// A terminal that passes bytes on unchanged and has the size of the one on our own standard output.
absl::StatusOr<OutputChannel> CreateTerminal();

// Gives the terminal of `fd` the size of the one on our own standard output. Does nothing if either is no terminal.
void CopyWindowSize(int fd);

enum class OutputStream { kOut, kErr };

// Merges the output of many processes into one terminal or file without mixing their lines.
//
// Every line of a prefixed source comes out whole, as "w1 | text". One source may be live: its bytes pass through as
// they come, carriage returns included, because it draws a progress line. Lines of the other sources are printed above
// that line, which is then drawn again.
class LineMerger {
 public:
  // A longer line is cut here: a process that never ends its line must not fill the memory.
  static constexpr size_t kLineBytesMax = 1 << 16;

  using Write = std::function<void(OutputStream, absl::string_view)>;
  // `time`: of the lines that come out on kErr.
  explicit LineMerger(Write write, LogTime time = LogTime::kNone) : write_(std::move(write)), time_(time) {}

  // Lines come out after `prefix` (which may be empty), on `stream`. Returns the source's number.
  int AddPrefixed(std::string prefix, OutputStream stream);
  // Bytes come out on kOut at once. At most one source is live at a time; the last one added counts.
  int AddLive();

  void Feed(int source, absl::string_view bytes);
  // The source has ended: an unfinished line is finished. The source's number must not be used again.
  void Close(int source);
  // Prints a line of the launcher's own, given without its line end.
  void Print(absl::string_view line);

 private:
  struct Source {
    std::string prefix;
    OutputStream stream = OutputStream::kOut;
    bool live = false;
    std::string partial;  // a prefixed source's bytes since its last line end
  };
  void EmitLine(const Source& source, absl::string_view line);
  void FeedLive(absl::string_view bytes);

  const Write write_;
  const LogTime time_;
  std::vector<Source> sources_;
  // The terminal's last row: the live source's text since its last line end or carriage return.
  std::string live_row_;
  bool live_row_complete_ = false;  // a carriage return followed the row: the next byte starts the row afresh
};

// The launcher's own standard output and error. Writing never waits: a terminal that is stopped (Ctrl-S), or a pipe
// whose reader is stuck, must not keep the launcher from reading what its children write, or the ranks would miss their
// deadlines. Bytes that cannot be written at once are kept, up to limits.h kLaunchOutputBytesMax. Further bytes are
// dropped, and a line says how many.
class OutputQueue {
 public:
  // Opens terminals and pipes a second time, so that O_NONBLOCK affects this process alone and not the shell.
  OutputQueue();
  // Waits up to one second for the kept bytes to be written.
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  void Write(OutputStream stream, absl::string_view bytes);

  // The descriptor to poll for writing; -1: no bytes wait.
  int fd() const { return pieces_.empty() ? -1 : DescriptorOf(pieces_.front().stream); }
  // Writes as much as possible without waiting.
  void Drain();

 private:
  struct Piece {
    OutputStream stream;
    std::string bytes;
  };
  int DescriptorOf(OutputStream stream) const;

  UniqueFd out_, err_;  // our own descriptors; none: the inherited one is used, which may wait
  std::deque<Piece> pieces_;
  size_t kept_bytes_ = 0;
  int64_t lost_bytes_ = 0;
};

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_OUTPUT_H_
