#include "common/host/sealed_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/file_descriptor.h"
#include "common/base/nonce.h"
#include "common/base/status.h"

namespace starring {
namespace {

constexpr char kName[] = "starring";
constexpr char kLink[] = "/memfd:starring";  // how /proc shows it
// The nonce has a page of its own, so the bytes begin on a page.
constexpr int64_t kHeaderBytes = 4096;

int64_t FileBytes(int64_t bytes) { return kHeaderBytes + bytes; }

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Whether a mapping of the file stays valid whatever its maker does, and has the right length.
bool IsSealed(int fd, int64_t bytes) {
  struct stat file;
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &file) == 0 && file.st_size == bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SealedMemory>> SealedMemory::Create(int64_t bytes) {
  CHECK_GE(bytes, 0);
  std::unique_ptr<SealedMemory> memory(new SealedMemory({.pid = getpid(), .nonce = DrawNonce()}, bytes));
  memory->fd_ = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory->fd_ < 0) return SystemError("memfd_create");
  memory->place_.fd = memory->fd_;
  // Allocates all pages now: a machine without memory refuses here, instead of killing a process in the middle of a
  // step.
  if (fallocate(memory->fd_, 0, 0, FileBytes(bytes)) != 0) return SystemError("fallocate");
  // A shorter file would end a peer by SIGBUS at its next access to the lost pages. The third seal keeps the other two
  // as they are.
  if (fcntl(memory->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return SystemError("F_ADD_SEALS");
  RETURN_IF_ERROR(memory->Map(memory->fd_, Access::kReadWrite));
  std::memcpy(memory->mapping_, &memory->place_.nonce, sizeof(memory->place_.nonce));
  return memory;
}

absl::StatusOr<std::unique_ptr<SealedMemory>> SealedMemory::Open(const Place& place, int64_t bytes, Access access) {
  // Each check rules out another wrong file: by name before the file is opened, by seals and length before it is
  // mapped, and by the nonce before a value is read.
  const std::string path = absl::StrCat("/proc/", place.pid, "/fd/", place.fd);
  // On another machine the path may name any file, and opening a device or a pipe can have effects: only a file of our
  // name is opened.
  char link[sizeof(kLink)];
  const ssize_t length = readlink(path.c_str(), link, sizeof(link));
  if (length < 0) return SystemError(path);
  if (!absl::StartsWith(absl::string_view(link, length), kLink)) {
    return absl::UnavailableError(absl::StrCat(path, " is no shared memory of starring"));
  }
  const FileDescriptor file(
      open(path.c_str(), (access == Access::kRead ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return SystemError(path);
  // The question is about the open descriptor, which stays the same file, unlike the path.
  if (!IsSealed(file.get(), FileBytes(bytes))) {
    return absl::UnavailableError(absl::StrCat(path, " is not sealed memory of ", bytes, " bytes"));
  }
  std::unique_ptr<SealedMemory> memory(new SealedMemory(place, bytes));
  RETURN_IF_ERROR(memory->Map(file.get(), access));  // the mapping outlives the descriptor
  uint64_t nonce;
  std::memcpy(&nonce, memory->mapping_, sizeof(nonce));
  // The process id may be another process's by now, whose descriptor of that number is memory of the same length.
  if (nonce != place.nonce) return absl::UnavailableError(absl::StrCat(path, " is the memory of another job"));
  return memory;
}

absl::Status SealedMemory::Map(int fd, Access access) {
  writable_ = access == Access::kReadWrite;
  // Populated, so that no step has page faults.
  void* const mapping =
      mmap(nullptr, FileBytes(size_), writable_ ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (mapping == MAP_FAILED) return SystemError("mmap");
  mapping_ = mapping;
  bytes_ = static_cast<std::byte*>(mapping) + kHeaderBytes;
  return absl::OkStatus();
}

SealedMemory::~SealedMemory() {
  if (mapping_ != nullptr) munmap(mapping_, FileBytes(size_));
  if (fd_ >= 0) close(fd_);
}

std::span<std::byte> SealedMemory::writable_bytes() {
  CHECK(writable_);
  return {bytes_, static_cast<size_t>(size_)};
}

}  // namespace starring
