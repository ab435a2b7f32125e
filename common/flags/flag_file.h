// Reads a file of flags: what follows --flagfile=FILE.
//
// A line is --name=value, a switch --name or --noname, empty, or a comment that begins with #. A line --flagfile=OTHER
// reads OTHER there (a relative path starts at the working directory, as on the command line). The outermost file may
// have one line "--": flags before it are the launcher's, flags after it its workers'.
#ifndef STARRING_COMMON_FLAGS_FLAG_FILE_H_
#define STARRING_COMMON_FLAGS_FLAG_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace starring {

struct FlagLine {
  std::string word;   // "--name=value"
  std::string place;  // "FILE:LINE: ", for messages
  int depth = 1;      // 1: in the outermost file
};

struct FlagFile {
  std::vector<FlagLine> lines;         // before "--", or all
  std::vector<FlagLine> worker_lines;  // after "--"
  std::string dashes_place;            // of "--", as FlagLine::place; empty: there is none
};

// NotFound if `path` cannot be read; InvalidArgument, with file and line, for a line that is none of the above, a file
// that is too long, and files that are nested too deep (limits.h).
absl::StatusOr<FlagFile> ReadFlagFile(const std::string& path);

}  // namespace starring

#endif  // STARRING_COMMON_FLAGS_FLAG_FILE_H_
