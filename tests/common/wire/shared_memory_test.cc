#include "common/wire/shared_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using Access = SharedMemory::Access;

std::unique_ptr<SharedMemory> MustCreate(int64_t element_count) {
  auto memory = SharedMemory::Create(element_count);
  CHECK_OK(memory);
  return *std::move(memory);
}

absl::StatusCode CodeOfOpen(const v1::SharedMemory& where, int64_t element_count, Access access = Access::kRead) {
  return SharedMemory::Open(where, element_count, access).status().code();
}

// Runs `body` in a process of its own and returns its exit status.
int InAnotherProcess(const std::function<int()>& body) {
  const pid_t pid = fork();
  CHECK_GE(pid, 0);
  if (pid == 0) _exit(body());
  int status = 0;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST(SharedMemoryTest, IsZeroedAndAligned) {
  for (const int64_t count : {0, 1, 1023, 1024, 100'003}) {
    const auto memory = MustCreate(count);
    ASSERT_EQ(std::ssize(memory->values()), count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->values().data()) % 64, 0u);
    EXPECT_EQ(std::vector<float>(memory->values().begin(), memory->values().end()), std::vector<float>(count));
  }
}

TEST(SharedMemoryTest, AnotherProcessReadsWhatIsWritten) {
  const auto memory = MustCreate(10'000);
  std::iota(memory->writable_values().begin(), memory->writable_values().end(), 0.0f);
  EXPECT_EQ(InAnotherProcess([&] {
              const auto opened = SharedMemory::Open(memory->where(), 10'000, Access::kRead);
              return opened.ok() && (*opened)->values()[9'999] == 9'999 ? 0 : 1;
            }),
            0);
}

TEST(SharedMemoryTest, AnotherProcessWritesIfItAsksFor) {
  const auto memory = MustCreate(10'000);
  EXPECT_EQ(InAnotherProcess([&] {
              const auto opened = SharedMemory::Open(memory->where(), 10'000, Access::kReadWrite);
              if (!opened.ok()) return 1;
              (*opened)->writable_values()[9'999] = 7;
              return 0;
            }),
            0);
  EXPECT_EQ(memory->values()[9'999], 7);
}

TEST(SharedMemoryTest, AReaderThatWritesIsABug) {
  const auto memory = MustCreate(100);
  const auto opened = SharedMemory::Open(memory->where(), 100, Access::kRead);
  ASSERT_TRUE(opened.ok());
  EXPECT_DEATH((*opened)->writable_values(), "writable_");
}

// A process on another machine, or in another container, may find something else under the same numbers.
TEST(SharedMemoryTest, WhatIsNotTheMemoryIsNotOpened) {
  const auto memory = MustCreate(100);
  EXPECT_EQ(CodeOfOpen(memory->where(), 100), absl::StatusCode::kOk);
  const auto code = [&](const std::function<void(v1::SharedMemory*)>& change) {
    v1::SharedMemory where = memory->where();
    change(&where);
    return CodeOfOpen(where, 100);
  };
  EXPECT_EQ(code([](auto* where) { where->Clear(); }), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code([](auto* where) { where->set_pid(1 << 30); }), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code([](auto* where) { where->set_pid(-1); }), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code([](auto* where) { where->set_fd(1 << 30); }), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code([](auto* where) { where->set_nonce(where->nonce() + 1); }), absl::StatusCode::kUnavailable);
}

TEST(SharedMemoryTest, AnotherLengthIsRefused) {
  const auto memory = MustCreate(100);
  EXPECT_EQ(CodeOfOpen(memory->where(), 99), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CodeOfOpen(memory->where(), 101), absl::StatusCode::kUnavailable);
}

// A file, a pipe without a writer (a careless open would wait for ever), and memory that could shrink under a
// reader and kill it.
TEST(SharedMemoryTest, OtherKindsOfFilesAreRefused) {
  v1::SharedMemory where;
  where.set_pid(getpid());
  const std::string path = ::testing::TempDir() + "/fifo";
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int fifo = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  const int file = open("/proc/self/exe", O_RDONLY);
  const int unsealed = memfd_create("starring", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(unsealed, 4096 + 400), 0);
  for (const int fd : {fifo, file, unsealed}) {
    ASSERT_GE(fd, 0);
    where.set_fd(fd);
    EXPECT_EQ(CodeOfOpen(where, 100), absl::StatusCode::kUnavailable);
    close(fd);
  }
}

// Reading memory that another process has shrunk would end the reader by SIGBUS.
TEST(SharedMemoryTest, CannotBeShrunk) {
  const auto memory = MustCreate(100);
  EXPECT_NE(ftruncate(memory->where().fd(), 0), 0);
}

TEST(SharedMemoryTest, StaysWithItsReadersAndIsGoneForOthersWhenItsMakerDies) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    const auto memory = MustCreate(100);
    memory->writable_values()[99] = 5;
    const std::string where = memory->where().SerializeAsString();
    CHECK_EQ(write(fds[1], where.data(), where.size()), std::ssize(where));
    pause();
    _exit(1);
  }
  char text[256];
  const ssize_t length = read(fds[0], text, sizeof(text));
  ASSERT_GT(length, 0);
  v1::SharedMemory where;
  ASSERT_TRUE(where.ParseFromArray(text, static_cast<int>(length)));
  const auto opened = SharedMemory::Open(where, 100, Access::kRead);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  close(fds[0]);
  close(fds[1]);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->values()[99], 5);
  EXPECT_EQ(CodeOfOpen(where, 100), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace starring
