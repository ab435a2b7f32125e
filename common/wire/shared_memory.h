// Memory that processes of one machine share: how a worker and the servers beside it hand over arrays.
//
// One process creates it, others open it by what SharedMemory::where says. It is a memfd, found through /proc: nothing
// has a name in a file system, and nothing is left behind by a process that dies. Its length is sealed, so that no peer
// can make a mapping of it invalid; its bytes are whatever the peers write.
//
// Thread safety: immutable but for the bytes. Who may read and write those when is agreed upon by messages
// (proto/starring/v1/parameter_server.proto); what was written before a message was sent is seen by who has received
// it: both go through the kernel, whose locks order the memory of both processes.
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

  // Zeroed, 4096-byte aligned, to be read and written. Fails with Unavailable if the system has no memfd or no memory.
  // REQUIRES: element_count >= 0.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(int64_t element_count);

  // Fails with Unavailable if there is no such memory of `element_count` elements here: the rule on another machine, in
  // another container, or as another user.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(const v1::SharedMemory& where, int64_t element_count,
                                                            Access access);

  ~SharedMemory();

  std::span<const float> values() const { return {values_, static_cast<size_t>(element_count_)}; }
  // REQUIRES: Create or kReadWrite.
  std::span<float> writable_values();

  // For Open in another process, as long as the one that created it keeps it.
  const v1::SharedMemory& where() const { return where_; }

 private:
  SharedMemory(const v1::SharedMemory& where, int64_t element_count) : where_(where), element_count_(element_count) {}
  absl::Status Map(int fd, Access access);

  v1::SharedMemory where_;
  int64_t element_count_;
  int fd_ = -1;  // of Create: open as long as others may look for it
  bool writable_ = false;
  void* mapping_ = nullptr;
  float* values_ = nullptr;
};

// Elements `range` of an array, as they lie in a message.
inline std::span<const std::byte> BytesOf(std::span<const float> values, ElementRange range) {
  return std::as_bytes(values.subspan(range.begin, range.size()));
}
inline std::span<std::byte> BytesOf(std::span<float> values, ElementRange range) {
  return std::as_writable_bytes(values.subspan(range.begin, range.size()));
}

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_SHARED_MEMORY_H_
