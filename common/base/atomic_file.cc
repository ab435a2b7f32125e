#include "common/base/atomic_file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

absl::Status SystemError(int error, absl::string_view what, const std::string& path) {
  const std::string message = absl::StrCat("cannot ", what, " ", path);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat(message, ": no space left, free some or name another folder"));
  }
  return absl::ErrnoToStatus(error, message);
}

absl::Status WriteAll(int file, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(errno, "write", path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// The file that a link points to; `path` itself if no such file exists yet. A rename to the link's own name would
// replace the link.
std::string Resolve(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? path : resolved;
}

bool IsWrittenStraight(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) return true;
  // /dev/stdout is a link even where standard output is a regular file, which must keep the text that it has.
  const bool is_of_the_system = absl::StartsWith(path, "/dev/") || absl::StartsWith(path, "/proc/");
  return is_of_the_system && lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

absl::Status MakeFolderOf(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? SystemError(error.value(), "make the folder", folder.string()) : absl::OkStatus();
}

// /dev/stdout may be a file that has text already. O_APPEND keeps the text.
absl::Status WriteStraight(const std::string& path, absl::string_view content) {
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file < 0) return SystemError(errno, "open", path);
  absl::Status status = WriteAll(file, std::as_bytes(std::span(content.data(), content.size())), path);
  if (close(file) != 0 && status.ok()) status = SystemError(errno, "close", path);
  return status;
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string temporary, int file)
    : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}

std::string ProcessMark() {
  // The last byte stays zero: gethostname does not end a name that it has to cut.
  char host[64] = {};
  return absl::StrCat(gethostname(host, sizeof(host) - 1) == 0 ? host : "unknown", ".", getpid());
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  // The file is in the same folder, because a rename cannot go from one file system to another.
  std::string temporary = absl::StrCat(path, ".tmp.", ProcessMark());
  // O_EXCL: in a folder that others may write to, a planted link would have us truncate what it names.
  const auto create = [&] {
    return open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  };
  int file = create();
  if (file < 0 && errno == ENOENT) {
    RETURN_IF_ERROR(MakeFolderOf(path));
    file = create();
  }
  // A process that crashed left it, and this one has the same host and id.
  if (file < 0 && errno == EEXIST && unlink(temporary.c_str()) == 0) file = create();
  if (file < 0) return SystemError(errno, "create", temporary);
  return std::unique_ptr<AtomicFile>(new AtomicFile(path, std::move(temporary), file));
}

absl::Status AtomicFile::Append(std::span<const std::byte> bytes) {
  CHECK_GE(file_, 0) << "Append after Commit";
  return WriteAll(file_, bytes, temporary_);
}

absl::Status AtomicFile::Commit() {
  CHECK_GE(file_, 0) << "Commit twice";
  // The flush precedes the rename: some file systems write the new name to the disk before the data, and a crash of the
  // machine in between would leave an empty file under the final name.
  if (fsync(file_) != 0) return SystemError(errno, "flush", temporary_);
  // A network file system may report a full disk only here.
  const int closed = close(std::exchange(file_, -1));
  absl::Status status = closed == 0 ? absl::OkStatus() : SystemError(errno, "close", temporary_);
  if (status.ok() && std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    status = SystemError(errno, "rename to", path_);
  }
  if (!status.ok()) unlink(temporary_.c_str());
  return status;
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content) {
  if (IsWrittenStraight(path)) return WriteStraight(path, content);
  ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::Create(Resolve(path)));
  RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(content.data(), content.size()))));
  return file->Commit();
}

absl::Status CheckFileWritable(const std::string& path) {
  const std::string resolved = Resolve(path);
  struct stat status = {};
  if (stat(resolved.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return SystemError(EISDIR, "write", path);
  if (!IsWrittenStraight(path)) return AtomicFile::Create(resolved).status();
  // Nothing is opened: a pipe without a reader would keep this process waiting.
  return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : SystemError(errno, "write", path);
}

}  // namespace starring
