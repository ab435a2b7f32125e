#include <google/protobuf/stubs/common.h>
#include <sys/utsname.h>

#include "absl/strings/str_cat.h"
#include "common/flags/command_line.h"
#include "worker/report/run_record.h"

namespace starring {
namespace {

std::string KernelRelease() {
  utsname name = {};
  return uname(&name) == 0 ? absl::StrCat(name.sysname, " ", name.release) : "unknown";
}

}  // namespace

// The versions of compiler and protobuf are those of the build; the kernel's is that of the running machine.
std::map<std::string, std::string> LibraryVersions() {
  return {{"starring", kStarringVersion},
          {"compiler", absl::StrCat("GCC ", __VERSION__)},
          {"kernel", KernelRelease()},
          {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)}};
}

}  // namespace starring
