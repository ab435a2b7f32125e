#include "common/base/memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gtest/gtest.h"

namespace starring {
namespace {

bool IsOnACacheLine(const void* address) { return reinterpret_cast<uintptr_t>(address) % kCacheLineBytes == 0; }

// Around a cache line and around the size from which on an array is in huge pages.
constexpr int64_t kSizes[] = {0, 1, 63, 64, 65, 4096, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5 << 20};

TEST(MemoryTest, RoundUpGivesTheNextMultiple) {
  EXPECT_EQ(RoundUp(0, 64), 0);
  EXPECT_EQ(RoundUp(1, 64), 64);
  EXPECT_EQ(RoundUp(64, 64), 64);
  EXPECT_EQ(RoundUp(65, 64), 128);
  EXPECT_EQ(RoundUp(7, 1), 7);
}

TEST(MemoryTest, AlignedMemoryBeginsOnACacheLineAndIsZeroed) {
  for (const int64_t size_bytes : kSizes) {
    const AlignedMemory memory(size_bytes);
    ASSERT_NE(memory.data(), nullptr) << size_bytes;
    EXPECT_TRUE(IsOnACacheLine(memory.data())) << size_bytes;
    EXPECT_EQ(memory.size_bytes(), size_bytes);
    EXPECT_TRUE(std::all_of(memory.data(), memory.data() + size_bytes, [](std::byte b) { return b == std::byte{0}; }))
        << size_bytes;
  }
}

TEST(MemoryTest, AllOfUndefinedMemoryCanBeWritten) {
  for (const int64_t size_bytes : kSizes) {
    const AlignedMemory memory(size_bytes, AlignedMemory::Content::kUndefined);
    ASSERT_NE(memory.data(), nullptr) << size_bytes;
    EXPECT_TRUE(IsOnACacheLine(memory.data())) << size_bytes;
    std::fill_n(memory.data(), size_bytes, std::byte{1});
  }
}

TEST(MemoryTest, FloatsAreZeroAndMoveWithoutACopy) {
  AlignedFloats floats(100);
  EXPECT_EQ(floats.size(), 100);
  EXPECT_TRUE(IsOnACacheLine(floats.data()));
  EXPECT_TRUE(std::ranges::all_of(floats.span(), [](float value) { return value == 0; }));
  floats.span()[99] = 1;
  const float* const before = floats.data();
  const AlignedFloats moved = std::move(floats);
  EXPECT_EQ(moved.data(), before);
  EXPECT_EQ(moved.span()[99], 1);
}

// The sanitizers bring a malloc of their own.
#if !defined(STARRING_ASAN) && !defined(STARRING_TSAN)
TEST(MemoryTest, ASizeThatNoMachineHasGivesNull) {
  const AlignedMemory memory(int64_t{1} << 60, AlignedMemory::Content::kUndefined);
  EXPECT_EQ(memory.data(), nullptr);
}

TEST(MemoryTest, FreedBlocksAreKept) {
  constexpr size_t kBytes = size_t{64} << 20;  // above malloc's own threshold for a mapping of its own
  KeepFreedMemory();
  void* const first = std::malloc(kBytes);
  ASSERT_NE(first, nullptr);
  std::free(first);
  void* const second = std::malloc(kBytes);
  EXPECT_EQ(second, first);
  std::free(second);
}

#endif

}  // namespace
}  // namespace starring
