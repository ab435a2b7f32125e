// Merges the output of many processes into one terminal or file without mixing their lines.
//
// Every line of a prefixed source comes out whole, as "w1 | text". One source may be live: its bytes pass through as
// they come, carriage returns included, because it draws a progress line; lines of the others are put above that line,
// which is then drawn again.
//
// Thread safety: one thread.
#ifndef STARRING_DEPLOY_LAUNCH_LINE_MERGER_H_
#define STARRING_DEPLOY_LAUNCH_LINE_MERGER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace starring {

enum class OutputStream { kOut, kErr };

class LineMerger {
 public:
  // A line that is longer is cut here: a process that never ends its line must not fill the memory.
  static constexpr size_t kLineBytesMax = 1 << 16;

  using Write = std::function<void(OutputStream, absl::string_view)>;
  explicit LineMerger(Write write) : write_(std::move(write)) {}

  // Lines come out behind `prefix` (which may be empty), on `stream`. Returns the source's number.
  int AddPrefixed(std::string prefix, OutputStream stream);
  // Bytes come out on kOut at once. At most one at a time; the last one added counts.
  int AddLive();

  void Feed(int source, absl::string_view bytes);
  // The source has ended: an unfinished line is finished. Its number stays valid for nothing.
  void Close(int source);
  // A line of the launcher's own, without its end.
  void Print(absl::string_view line);

 private:
  struct Source {
    std::string prefix;
    OutputStream stream = OutputStream::kOut;
    bool live = false;
    std::string partial;  // of a prefixed source: what came since the last line end
  };
  void EmitLine(const Source& source, absl::string_view line);
  void FeedLive(absl::string_view bytes);

  const Write write_;
  std::vector<Source> sources_;
  // What stands in the terminal's last row: the live source's text since its last line end or carriage return.
  std::string live_row_;
  bool live_row_complete_ = false;  // a carriage return came behind it: the next byte starts the row afresh
};

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_LINE_MERGER_H_
