#include "common/host/host_identity.h"

#include <unistd.h>

#include <fstream>

namespace starring {

std::string HostName() {
  // The last byte stays zero: gethostname does not end a name that it has to cut.
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace starring
