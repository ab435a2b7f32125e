// mpirun and orted of a bundle (//deploy:bundle): tells Open MPI where the bundle is, then becomes the real program of
// the same name in the folder openmpi. mpirun starts orted on other nodes, as <folder of mpirun>/orted.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <string_view>

#include "common/host/own_program.h"
#include "common/transport/mpi/bundled_open_mpi.h"

namespace {

bool IsOnPath(const std::string& program) {
  const char* const path = getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access(folder.append("/").append(program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// Whether the command line says how to reach other nodes, or which.
bool NamesOtherNodes(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "plm_rsh_agent" || word.ends_with("-hostfile") || word.ends_with("-machinefile")) return true;
    const bool is_host = word == "--host" || word == "-host" || word == "-H";
    if (is_host && i + 1 < argc && !std::string_view(argv[i + 1]).starts_with("localhost")) return true;
  }
  return false;
}

// Without ssh on the machine, Open MPI's component for other nodes fails at the start, even for ranks on this machine
// alone. This excludes the component. Not where other nodes are named: without it Open MPI would start all of their
// ranks here, and say nothing.
void AllowForNoSsh(int argc, char** argv) {
  if (getenv("OMPI_MCA_plm_rsh_agent") != nullptr || IsOnPath("ssh") || IsOnPath("rsh")) return;
  if (NamesOtherNodes(argc, argv)) return;
  setenv("OMPI_MCA_plm", "^rsh", /*replace=*/0);
}

}  // namespace

int main(int argc, char** argv) {
  std::string self = starring::OwnProgram();
  const std::string folder = starring::BundleFolder();
  if (argc < 1 || folder.empty()) {
    std::fprintf(stderr, "%s: no bundle around this program: run it from where the bundle was unpacked\n", argv[0]);
    return 1;
  }
  starring::UseBundledOpenMpi(folder);
  AllowForNoSsh(argc, argv);
  // mpirun derives the folder of orted on other nodes from an absolute argv[0].
  argv[0] = self.data();
  const std::string program = folder + "/openmpi" + self.substr(self.rfind('/'));
  execv(program.c_str(), argv);
  std::fprintf(stderr, "%s: cannot start %s: %s\n", self.c_str(), program.c_str(), strerror(errno));
  return 1;
}
