#include "common/host/sealed_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "common/base/check.h"
#include "gtest/gtest.h"

// tests/common/wire:shared_memory_test has what another process may find in place of the memory.
namespace starring {
namespace {

using Access = SealedMemory::Access;

std::unique_ptr<SealedMemory> MustCreate(int64_t bytes) {
  auto memory = SealedMemory::Create(bytes);
  CHECK_OK(memory);
  return *std::move(memory);
}

TEST(SealedMemoryTest, AnyLengthIsZeroedAndBeginsOnAPage) {
  for (const int64_t bytes : {0, 1, 4096, 100'003}) {
    const auto memory = MustCreate(bytes);
    ASSERT_EQ(std::ssize(memory->bytes()), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->bytes().data()) % 4096, 0u);
    EXPECT_TRUE(std::ranges::all_of(memory->bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST(SealedMemoryTest, ProcessesSeeWhatEachOtherWrites) {
  const auto memory = MustCreate(777);
  memory->writable_bytes()[776] = std::byte{5};
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    const auto opened = SealedMemory::Open(memory->place(), 777, Access::kReadWrite);
    if (!opened.ok() || (*opened)->bytes()[776] != std::byte{5}) _exit(1);
    (*opened)->writable_bytes()[0] = std::byte{7};
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory->bytes()[0], std::byte{7});
}

TEST(SealedMemoryTest, OnlyThePlaceAndTheLengthOpenIt) {
  const auto memory = MustCreate(100);
  const auto code = [](const SealedMemory::Place& place, int64_t bytes) {
    return SealedMemory::Open(place, bytes, Access::kRead).status().code();
  };
  const SealedMemory::Place place = memory->place();
  EXPECT_EQ(code(place, 100), absl::StatusCode::kOk);
  EXPECT_EQ(code(place, 99), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code({.pid = place.pid, .fd = place.fd, .nonce = place.nonce + 1}, 100), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code({.pid = place.pid, .fd = 0, .nonce = place.nonce}, 100), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code({.pid = -1, .fd = place.fd, .nonce = place.nonce}, 100), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace starring
