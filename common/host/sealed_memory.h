// Memory that processes of one machine share.
//
// One process creates the memory, and others open it with the creator's place(). It is a memfd, which is found through
// /proc: it has no name in a file system, and nothing remains when a process dies. Its length is sealed, so that no
// peer can make another's mapping invalid; the bytes are not protected from peers.
//
// Thread safety: immutable except for the bytes.
#ifndef STARRING_COMMON_HOST_SEALED_MEMORY_H_
#define STARRING_COMMON_HOST_SEALED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace starring {

class SealedMemory {
 public:
  enum class Access { kRead, kReadWrite };

  // Another process needs a Place to open the memory. A Place works while the creator keeps its object.
  struct Place {
    int64_t pid = 0;
    int64_t fd = 0;
    uint64_t nonce = 0;
  };

  // Zeroed, 4096-byte aligned, readable and writable. Fails with Unavailable if the system has no memfd or no memory.
  // REQUIRES: bytes >= 0.
  static absl::StatusOr<std::unique_ptr<SealedMemory>> Create(int64_t bytes);

  // Fails with Unavailable if this process finds no such memory of that length. That is the rule on another machine, in
  // another container, or as another user.
  static absl::StatusOr<std::unique_ptr<SealedMemory>> Open(const Place& place, int64_t bytes, Access access);

  ~SealedMemory();

  const Place& place() const { return place_; }
  std::span<const std::byte> bytes() const { return {bytes_, static_cast<size_t>(size_)}; }
  // REQUIRES: Create or kReadWrite.
  std::span<std::byte> writable_bytes();

 private:
  SealedMemory(const Place& place, int64_t size) : place_(place), size_(size) {}
  absl::Status Map(int fd, Access access);

  Place place_;
  const int64_t size_;
  int fd_ = -1;  // after Create: open as long as others may open the memory
  bool writable_ = false;
  void* mapping_ = nullptr;
  std::byte* bytes_ = nullptr;
};

}  // namespace starring

#endif  // STARRING_COMMON_HOST_SEALED_MEMORY_H_
