#include "common/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace starring {
namespace {

absl::Status SystemError(int error, absl::string_view what, const std::string& path) {
  const std::string message = absl::StrCat("cannot ", what, " ", path);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat(message, ": no space left, free some or name another folder"));
  }
  return absl::ErrnoToStatus(error, message);
}

absl::Status WriteAndFlush(int file, absl::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(errno, "write", path);
    content.remove_prefix(static_cast<size_t>(written));
  }
  if (fsync(file) != 0) return SystemError(errno, "flush", path);
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return SystemError(errno, "create", temporary);
  absl::Status status = WriteAndFlush(file, content, temporary);
  if (close(file) != 0 && status.ok()) status = SystemError(errno, "close", temporary);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) status = SystemError(errno, "rename to", path);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace starring
