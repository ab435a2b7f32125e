// The path of this process's program, as users start it.
//
// /proc/self/exe names it, except in a bundle (//deploy:bundle). There bin/worker is a starter, which becomes
// libexec/bin/worker, or libexec/loader/bin/worker: a loader of that name, which loads the former. Paths alone decide,
// and no variable that a process could have inherited from another program.
//
// Thread safety: any thread may call any function.
#ifndef STARRING_COMMON_HOST_OWN_PROGRAM_H_
#define STARRING_COMMON_HOST_OWN_PROGRAM_H_

#include <string>

namespace starring {

// The program that a process of this file runs: TOP/bin/worker for each of a bundle's three files above, else the file
// itself. `file` is what /proc/PID/exe says.
[[nodiscard]] std::string ProgramOf(const std::string& file);

// The absolute path of this process's program. Empty without a /proc, or if the path is longer than PATH_MAX.
[[nodiscard]] std::string OwnProgram();

}  // namespace starring

#endif  // STARRING_COMMON_HOST_OWN_PROGRAM_H_
