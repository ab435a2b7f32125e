#include "kernels/cpu/aligned_memory.h"

#include <cstring>

#include "common/aligned_allocation.h"

namespace starring {

AlignedMemory::AlignedMemory(int64_t size_bytes) : size_bytes_(size_bytes) {
  data_.reset(static_cast<std::byte*>(AllocateAligned(static_cast<size_t>(size_bytes))));
  if (data_ != nullptr) std::memset(data_.get(), 0, static_cast<size_t>(size_bytes));
}

}  // namespace starring
