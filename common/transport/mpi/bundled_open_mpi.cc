#include "common/transport/mpi/bundled_open_mpi.h"

#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/host/own_program.h"

namespace starring {

std::string BundleFolder() {
  const std::string program = OwnProgram();
  const size_t end_of_folder = program.rfind('/');
  if (end_of_folder == 0 || end_of_folder == std::string::npos) return "";
  const std::string above = program.substr(0, program.rfind('/', end_of_folder - 1));
  return access((above + "/etc/openmpi/openmpi-mca-params.conf").c_str(), R_OK) == 0 ? above : "";
}

void UseBundledOpenMpi(const std::string& folder) {
  const struct {
    const char* name;
    const char* below;
  } variables[] = {
      {"OPAL_PREFIX", ""},
      {"OPAL_BINDIR", "/bin"},
      {"OPAL_LIBDIR", "/lib"},
      {"OPAL_PKGLIBDIR", "/lib/openmpi"},
      {"OPAL_PKGDATADIR", "/share/openmpi"},
      {"OPAL_SYSCONFDIR", "/etc/openmpi"},
      {"PMIX_PREFIX", ""},
      {"PMIX_LIBDIR", "/lib"},
      {"PMIX_PKGLIBDIR", "/lib/pmix"},
      {"PMIX_PKGDATADIR", "/share/pmix"},
      {"PMIX_SYSCONFDIR", "/etc/pmix"},
      // This folder does not exist, on purpose: hwloc would load the machine's plugins, which are made for another
      // hwloc.
      {"HWLOC_PLUGINS_PATH", "/lib/hwloc"},
  };
  for (const auto& variable : variables) setenv(variable.name, (folder + variable.below).c_str(), /*replace=*/1);
  // PMIx reads the user's home folder from /etc/passwd, and crashes in a container that does not list the user.
  if (getpwuid(geteuid()) == nullptr) setenv("HOME", "/", /*replace=*/0);
}

}  // namespace starring
