// Memory that a worker and the servers over gRPC on its machine share, to hand over arrays. The processes of one world
// share theirs as common/transport/memory/host_memory.h says.
//
// One process creates the memory, and others open it with the creator's where(), as a message has it.
// common/host/sealed_memory.h says how the memory is made.
//
// Thread safety: immutable except for the bytes. Messages decide which process may read and write them when
// (proto/starring/v1/parameter_server.proto). A process that has received a message sees what the sender wrote before
// sending it: both calls enter the kernel, whose locks order the memory of both processes.
#ifndef STARRING_COMMON_WIRE_SHARED_MEMORY_H_
#define STARRING_COMMON_WIRE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/element_range.h"
#include "common/host/sealed_memory.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

class SharedMemory {
 public:
  using Access = SealedMemory::Access;

  // Zeroed, 4096-byte aligned, readable and writable. Fails with Unavailable if the system has no memfd or no memory.
  // REQUIRES: element_count >= 0.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(int64_t element_count);

  // Fails with Unavailable if this process finds no such memory of `element_count` elements. That is the rule on
  // another machine, in another container, or as another user.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(const v1::SharedMemory& where, int64_t element_count,
                                                            Access access);

  std::span<const float> values() const;
  // REQUIRES: Create or kReadWrite.
  std::span<float> writable_values();

  // For Open in another process, which works while the creator keeps this object.
  const v1::SharedMemory& where() const { return where_; }

 private:
  SharedMemory(v1::SharedMemory where, std::unique_ptr<SealedMemory> memory)
      : where_(std::move(where)), memory_(std::move(memory)) {}

  const v1::SharedMemory where_;
  const std::unique_ptr<SealedMemory> memory_;
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
