#include "common/host/own_program.h"

#include <limits.h>
#include <unistd.h>

#include <cstddef>
#include <string_view>

namespace starring {
namespace {

// Takes the last part from a path and returns it: "worker" from "/a/bin/worker", which becomes "/a/bin".
std::string_view TakeLast(std::string_view& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return {};
  const std::string_view last = path.substr(slash + 1);
  path = path.substr(0, slash);
  return last;
}

}  // namespace

std::string ProgramOf(const std::string& file) {
  std::string_view above = file;
  const std::string_view name = TakeLast(above);
  const std::string_view folder = TakeLast(above);
  std::string_view kind = TakeLast(above);
  if (kind == "loader") kind = TakeLast(above);
  if (kind != "libexec") return file;
  std::string starter(above);
  starter.append("/").append(folder).append("/").append(name);
  // A system's own folder may have the name libexec, too: /usr/libexec/starring/worker.
  return access(starter.c_str(), X_OK) == 0 ? starter : file;
}

std::string OwnProgram() {
  char file[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", file, sizeof(file));
  // A path that fills the buffer may have been cut.
  if (length <= 0 || length == sizeof(file)) return "";
  return ProgramOf(std::string(file, static_cast<size_t>(length)));
}

}  // namespace starring
