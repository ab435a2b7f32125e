#include "kernels/cpu/aligned_memory.h"

#include <algorithm>
#include <cstring>

namespace starring {

AlignedMemory::AlignedMemory(int64_t size_bytes) : size_bytes_(size_bytes) {
  const int64_t rounded = RoundUp(std::max<int64_t>(size_bytes, 1), kAlignmentBytes);
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignmentBytes, static_cast<size_t>(rounded))));
  if (data_ != nullptr) std::memset(data_.get(), 0, static_cast<size_t>(rounded));
}

}  // namespace starring
