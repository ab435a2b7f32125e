// Reads a command line into Abseil flags, and refuses what it does not know.
//
// absl::ParseCommandLine ends the process itself, with exit code 1, and lets stray words pass; our programs promise
// exit code 2 and a message with the way out.
#ifndef STARRING_COMMON_COMMAND_LINE_H_
#define STARRING_COMMON_COMMAND_LINE_H_

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace starring {

// What main returns for a status. Scripts and deploy:launch rely on the numbers.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;       // at run time
inline constexpr int kExitRefused = 2;      // flags, files or peers that contradict: a restart cannot help
inline constexpr int kExitPeerMissing = 3;  // a peer never came, or went away
int ExitCode(const absl::Status& status);

// Sets every flag that `argv` names (--name=value, --name value, --name, --noname) and returns the names that were
// given. Everything behind a lone "--" is ignored. InvalidArgument for an unknown flag (with the nearest known name), a
// value that does not parse, a flag given twice, or a word that is no flag. --help prints the flags of `program` and
// exits 0.
absl::StatusOr<std::set<std::string>> ParseFlags(int argc, const char* const* argv);

}  // namespace starring

#endif  // STARRING_COMMON_COMMAND_LINE_H_
