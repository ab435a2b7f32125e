// The launcher's own standard output and error, on which it never waits: a terminal that is stopped (Ctrl-S) or a pipe
// that nobody empties must not keep it from reading what its children write, or the ranks would miss their deadlines.
// What does not go out at once is kept, up to limits.h kLaunchOutputBytesMax; beyond that it is left out, and said so.
//
// Thread safety: one thread.
#ifndef STARRING_DEPLOY_LAUNCH_OUTPUT_QUEUE_H_
#define STARRING_DEPLOY_LAUNCH_OUTPUT_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "deploy/launch/line_merger.h"
#include "deploy/launch/output_channel.h"

namespace starring {

class OutputQueue {
 public:
  // Terminals and pipes are opened once more, so that not to wait is a property of ours alone and not of the shell's.
  OutputQueue();
  // Gives what is left a second to go out.
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  void Write(OutputStream stream, absl::string_view bytes);

  // What to poll for writing; -1: nothing waits.
  int fd() const { return pieces_.empty() ? -1 : DescriptorOf(pieces_.front().stream); }
  // Writes what goes without waiting.
  void Drain();

 private:
  struct Piece {
    OutputStream stream;
    std::string bytes;
  };
  int DescriptorOf(OutputStream stream) const;

  UniqueFd out_, err_;  // ours; none: the descriptor that we were given, which may wait
  std::deque<Piece> pieces_;
  size_t kept_bytes_ = 0;
  int64_t lost_bytes_ = 0;
};

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_OUTPUT_QUEUE_H_
