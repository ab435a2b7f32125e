#include "common/wire/shared_memory.h"

#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

int64_t ByteCount(int64_t element_count) { return element_count * static_cast<int64_t>(sizeof(float)); }

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(int64_t element_count) {
  CHECK_GE(element_count, 0);
  ASSIGN_OR_RETURN(std::unique_ptr<SealedMemory> memory, SealedMemory::Create(ByteCount(element_count)));
  v1::SharedMemory where;
  where.set_bytes(ByteCount(element_count));
  where.set_nonce(memory->place().nonce);
  where.set_pid(memory->place().pid);
  where.set_fd(memory->place().fd);
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(where), std::move(memory)));
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Open(const v1::SharedMemory& where, int64_t element_count,
                                                                 Access access) {
  ASSIGN_OR_RETURN(std::unique_ptr<SealedMemory> memory,
                   SealedMemory::Open({.pid = where.pid(), .fd = where.fd(), .nonce = where.nonce()},
                                      ByteCount(element_count), access));
  return std::unique_ptr<SharedMemory>(new SharedMemory(where, std::move(memory)));
}

std::span<const float> SharedMemory::values() const {
  const std::span<const std::byte> bytes = memory_->bytes();
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

std::span<float> SharedMemory::writable_values() {
  const std::span<std::byte> bytes = memory_->writable_bytes();
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace starring
