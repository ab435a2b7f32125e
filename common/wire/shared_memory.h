// Memory that processes of one machine share: how a worker and the servers on its machine hand over arrays, and ranks
// theirs (worker/exchange/peer/host_memory.h).
//
// One process creates the memory, and others open it with the creator's where(). It is a memfd, which is found through
// /proc: it has no name in a file system, and nothing remains when a process dies. Its length is sealed, so that no
// peer can make another's mapping invalid; the bytes are not protected from peers.
//
// Thread safety: immutable except for the bytes. Messages decide which process may read and write them when
// (proto/starring/v1/parameter_server.proto), or counts in the memory itself (host_board.h). A process that has
// received a message sees what the sender wrote before sending it: both calls enter the kernel, whose locks order the
// memory of both processes.
#ifndef STARRING_COMMON_WIRE_SHARED_MEMORY_H_
#define STARRING_COMMON_WIRE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/layout.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

class SharedMemory {
 public:
  enum class Access { kRead, kReadWrite };

  // Zeroed, 4096-byte aligned, readable and writable. Fails with Unavailable if the system has no memfd or no memory.
  // REQUIRES: element_count >= 0.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(int64_t element_count);

  // Fails with Unavailable if this process finds no such memory of `element_count` elements. That is the rule on
  // another machine, in another container, or as another user.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(const v1::SharedMemory& where, int64_t element_count,
                                                            Access access);

  ~SharedMemory();

  std::span<const float> values() const { return {values_, static_cast<size_t>(element_count_)}; }
  // REQUIRES: Create or kReadWrite.
  std::span<float> writable_values();

  // For Open in another process, which works while the creator keeps this object.
  const v1::SharedMemory& where() const { return where_; }

 private:
  SharedMemory(const v1::SharedMemory& where, int64_t element_count) : where_(where), element_count_(element_count) {}
  absl::Status Map(int fd, Access access);

  v1::SharedMemory where_;
  int64_t element_count_;
  int fd_ = -1;  // after Create: open as long as others may open the memory
  bool writable_ = false;
  void* mapping_ = nullptr;
  float* values_ = nullptr;
};

// Elements `range` of an array as bytes of a message.
inline std::span<const std::byte> BytesOf(std::span<const float> values, ElementRange range) {
  return std::as_bytes(values.subspan(range.begin, range.size()));
}
inline std::span<std::byte> BytesOf(std::span<float> values, ElementRange range) {
  return std::as_writable_bytes(values.subspan(range.begin, range.size()));
}

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_SHARED_MEMORY_H_
