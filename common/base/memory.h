// Memory for arrays: on a cache line's boundary, and in huge pages where the array is large and the system has them.
//
// Thread safety: one thread at a time for each object.
#ifndef STARRING_COMMON_BASE_MEMORY_H_
#define STARRING_COMMON_BASE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace starring {

// A cache line, which is also as long as the widest vector register (AVX-512).
inline constexpr int64_t kCacheLineBytes = 64;

// The least multiple of `multiple` that is not below `value`. REQUIRES: value >= 0, multiple >= 1.
constexpr int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Move-only.
class AlignedMemory {
 public:
  // kUndefined: the first thread that writes to a page decides on which NUMA node the page is.
  enum class Content { kZeros, kUndefined };

  AlignedMemory() = default;
  // REQUIRES: size_bytes >= 0. data() is null when the system has no memory left.
  explicit AlignedMemory(int64_t size_bytes, Content content = Content::kZeros);

  std::byte* data() const { return data_.get(); }
  float* floats() const { return reinterpret_cast<float*>(data_.get()); }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_bytes_ = 0;
};

// An array of floats, all 0 at first. Move-only.
class AlignedFloats {
 public:
  AlignedFloats() = default;
  // REQUIRES: size >= 0. Ends the process when the system has no memory left.
  explicit AlignedFloats(int64_t size);

  int64_t size() const { return size_; }
  float* data() { return memory_.floats(); }
  const float* data() const { return memory_.floats(); }
  std::span<float> span() { return {data(), static_cast<size_t>(size_)}; }
  std::span<const float> span() const { return {data(), static_cast<size_t>(size_)}; }

 private:
  AlignedMemory memory_;
  int64_t size_ = 0;
};

// Makes malloc keep what is freed, for the whole process: a buffer that is freed and asked for again in every step
// would otherwise come back as fresh pages, each of which costs a page fault.
void KeepFreedMemory();

}  // namespace starring

#endif  // STARRING_COMMON_BASE_MEMORY_H_
