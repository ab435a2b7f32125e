// Reads a command line, and the files of flags that it names, into a program's options. Refuses unknown flags and
// words.
//
// absl::ParseCommandLine ends the process itself, with exit code 1, and lets stray words pass. Our programs promise
// exit code 2 and a message with the way out.
//
// A file of flags has lines of four kinds: --name=value, a switch --name or --noname, an empty line, and a comment that
// begins with #. A line --flagfile=OTHER reads OTHER there; a relative path starts at the working directory, as on the
// command line. The outermost file may have one line "--": flags before it are the launcher's, flags after it are its
// workers'.
#ifndef STARRING_COMMON_FLAGS_COMMAND_LINE_H_
#define STARRING_COMMON_FLAGS_COMMAND_LINE_H_

#include <set>
#include <string>
#include <typeinfo>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/flags/flag_table.h"

namespace starring {

// The version that --version prints and that the run record has.
inline constexpr char kStarringVersion[] = "0.1";

// The exit codes that main returns for a status. Scripts and deploy:launch rely on the numbers.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;       // at run time
inline constexpr int kExitRefused = 2;      // flags, files or peers that contradict: a restart cannot help
inline constexpr int kExitPeerMissing = 3;  // a peer never came, or went away
inline constexpr int kExitNotWritten = 4;   // trained, and the result is not on the disk (NotWrittenError)
[[nodiscard]] int ExitCode(const absl::Status& status);

// `bazel run` starts a program in a folder of its own, while the paths in the flags are relative to the user's folder.
// Enters the user's folder, which `bazel run` names in BUILD_WORKING_DIRECTORY, and removes that variable, so that a
// process started from here keeps the folder that it is given. Without the variable nothing happens. Prints a warning
// in the name of `program` if the folder cannot be entered.
//
// Thread safety: call it first in main; it changes the environment and the working directory.
void EnterUsersFolder(const char* program);

// InvalidArgument: flag --FLAG cannot be "VALUE": WHY. `why` ends with the way out.
absl::Status RefuseFlag(absl::string_view flag, absl::string_view value, absl::string_view why);

// Which part of a file with a line "--" a program reads. A file without that line is read whole. kNone refuses "--".
enum class FlagFilePart { kNone, kLauncher, kWorker };

struct ParsedFlags {
  std::set<std::string> given;  // names, without "--"
  // kLauncher: files on the command line whose second part is the workers'.
  std::vector<std::string> files_with_worker_part;
};

namespace flag_internal {
absl::StatusOr<ParsedFlags> ParseInto(int argc, const char* const* argv, const FlagTable& table,
                                      const std::type_info& holder, void* options, FlagFilePart part);
}  // namespace flag_internal

// Writes the value of every flag that `argv` names (--name=value, --name value, --name, --noname), and of those that
// each --flagfile=FILE names, into the field of `options` that the flag's row points to. Other fields stay. A flag on
// the command line wins over the same flag in a file, wherever it is written; a flag of a file wins over the files that
// the file names. Words after a lone "--" are ignored.
//
// InvalidArgument for an unknown flag (with the nearest known name), a value that does not parse or is beyond the
// limits of its row, a flag given twice in one place, or a word that is no flag; the message names file and line.
// --help, --help=WORD and --version print and end the process with 0.
//
// REQUIRES: `table` is of Options.
template <typename Options>
absl::StatusOr<ParsedFlags> ParseFlags(int argc, const char* const* argv, const FlagTable& table, Options* options,
                                       FlagFilePart part = FlagFilePart::kNone) {
  return flag_internal::ParseInto(argc, argv, table, typeid(Options), options, part);
}

struct FlagLine {
  std::string word;   // "--name=value"
  std::string place;  // "FILE:LINE: ", for messages
  int depth = 1;      // 1: in the outermost file; a file that it names: 2
};

struct FlagFile {
  std::vector<FlagLine> lines;         // before "--", or all
  std::vector<FlagLine> worker_lines;  // after "--"
  std::string dashes_place;            // the place of the line "--", as FlagLine::place; empty: there is none
};

// NotFound if `path` cannot be read. InvalidArgument, with file and line, for a line of no known kind, a file that is
// too long, and files that are nested too deep (limits.h).
absl::StatusOr<FlagFile> ReadFlagFile(const std::string& path);

}  // namespace starring

#endif  // STARRING_COMMON_FLAGS_COMMAND_LINE_H_
