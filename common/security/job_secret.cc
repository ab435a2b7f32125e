#include "common/security/job_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file_descriptor.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/security/hmac_sha256.h"
#include "common/security/sha256.h"

namespace starring {
namespace {

absl::Status SystemError(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
}

absl::Status WriteAll(int fd, const std::string& path, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(path, errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  // A crash of the machine must not leave half a secret, which no later call would replace.
  return fsync(fd) == 0 ? absl::OkStatus() : SystemError(path, errno);
}

absl::Status CheckMode(const std::string& path, mode_t mode, FileReaders readers) {
  if (readers == FileReaders::kOwnerOnly && (mode & 077) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has mode %04o, at most 0600 is allowed, since others than "
                        "its owner could use it: chmod 600 %s",
                        path, mode & 07777, path));
  }
  if (readers == FileReaders::kOwnerAndGroup && (mode & 037) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has mode %04o, at most 0640 is allowed, since others than its owner and its group could use "
        "it: chmod 440 %s, or defaultMode: 0440 in a volume of Kubernetes",
        path, mode & 07777, path));
  }
  return absl::OkStatus();
}

absl::Status WriteSecret(const std::string& path, absl::string_view content) {
  // O_EXCL: a job that runs may still read the file of that name, so it is never overwritten.
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    const int error = errno;
    const absl::Status status = SystemError(path, error);
    return error == EEXIST ? Annotate(status, "a secret is never overwritten") : status;
  }
  // The umask may have taken bits from the mode that open was given.
  absl::Status status = fchmod(file.get(), 0600) == 0 ? absl::OkStatus() : SystemError(path, errno);
  if (status.ok()) status = WriteAll(file.get(), path, content);
  // Half a secret would be refused by every process, and O_EXCL would keep the next call from replacing it.
  if (!status.ok()) unlink(path.c_str());
  return status;
}

}  // namespace

absl::StatusOr<std::string> ReadPemFile(const std::string& path, FileReaders readers) {
  // O_NONBLOCK: opening a pipe of that name would otherwise wait for a writer for ever.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return SystemError(path, errno);
  // The facts are those of the open file, not of the path: between two looks at a path another file could take its
  // place.
  struct stat facts;
  if (fstat(file.get(), &facts) != 0) return SystemError(path, errno);
  if (!S_ISREG(facts.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is no file"));
  RETURN_IF_ERROR(CheckMode(path, facts.st_mode, readers));
  // One byte more than allowed tells a file that is too long from one that just fits.
  const size_t bytes_max = readers == FileReaders::kAny ? kCertificatesBytesMax : kSecretFileBytesMax;
  std::string content(bytes_max + 1, '\0');
  size_t size = 0;
  while (size < content.size()) {
    const ssize_t got = read(file.get(), content.data() + size, content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", facts.st_size, " bytes, keys and certificates have at most ", bytes_max));
  }
  content.resize(size);
  return content;
}

absl::StatusOr<JobSecret> JobSecret::Load(const std::string& path) {
  absl::StatusOr<std::string> content = ReadPemFile(path, FileReaders::kOwnerOnly);
  if (!content.ok()) {
    // Only a missing file has this way out: --make_secret never overwrites an unfit one.
    if (content.status().code() != absl::StatusCode::kNotFound) return content.status();
    return absl::NotFoundError(
        absl::StrCat(std::string(content.status().message()), ": make one by deploy/launch --make_secret=", path));
  }
  ASSIGN_OR_RETURN(KeyAndCertificate pair, ParseKeyAndCertificate(*content), path);
  return JobSecret(absl::HexStringToBytes(Sha256Hex(std::string_view(*content))), std::move(pair));
}

std::string JobSecret::KeyFor(KeyUse use) const {
  // Each use has a key of its own, so a code that was made for one use proves nothing in the other.
  return HmacSha256(digest_, use == KeyUse::kRequests ? "starring grpc requests" : "starring tcp ranks");
}

absl::Status MakeJobSecret(const std::string& path) {
  ASSIGN_OR_RETURN(const KeyAndCertificate pair, MakeSelfSigned(kJobSecretName));
  return WriteSecret(path, absl::StrCat(pair.private_key, pair.certificate));
}

absl::Status CopyJobSecret(const std::string& from, const std::string& to) {
  ASSIGN_OR_RETURN(const std::string content, ReadPemFile(from, FileReaders::kOwnerAndGroup));
  RETURN_IF_ERROR(ParseKeyAndCertificate(content).status(), from);
  const absl::StatusOr<std::string> present = ReadPemFile(to, FileReaders::kOwnerOnly);
  // A process that starts again finds the copy that it has made before, and WriteSecret would refuse to replace it.
  return present.ok() && *present == content ? absl::OkStatus() : WriteSecret(to, content);
}

}  // namespace starring
