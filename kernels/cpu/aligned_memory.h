// Zeroed memory on a 64-byte boundary (common/aligned_allocation.h), freed by the destructor.
#ifndef STARRING_KERNELS_CPU_ALIGNED_MEMORY_H_
#define STARRING_KERNELS_CPU_ALIGNED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace starring {

inline constexpr int64_t kAlignmentBytes = 64;

constexpr int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

class AlignedMemory {
 public:
  AlignedMemory() = default;
  // REQUIRES: size_bytes >= 0. data() is null when the system has no memory left.
  explicit AlignedMemory(int64_t size_bytes);

  std::byte* data() const { return data_.get(); }
  float* floats() const { return reinterpret_cast<float*>(data_.get()); }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_bytes_ = 0;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_ALIGNED_MEMORY_H_
