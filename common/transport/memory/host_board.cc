#include "common/transport/memory/host_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "common/base/check.h"

namespace starring {
namespace {

// Which sleepers a system call wakes.
constexpr uint32_t kLookingBit = 1;
constexpr uint32_t kOtherBit = 2;
constexpr uint32_t kEverybody = kLookingBit | kOtherBit;

}  // namespace

int64_t HostBoard::Bytes(const Options& options) {
  return options.bucket_count * static_cast<int64_t>(sizeof(Bucket)) +
         options.world_size * static_cast<int64_t>(sizeof(Bell));
}

// Zeroed memory is an atomic zero for every ABI that this runs on, so no rank constructs the counts: the first one that
// maps the memory could not know that it is the first.
HostBoard::HostBoard(std::span<std::byte> memory, const Options& options)
    : rank_(options.rank),
      buckets_(reinterpret_cast<Bucket*>(memory.data()), options.bucket_count),
      bells_(reinterpret_cast<Bell*>(memory.data() + buckets_.size_bytes()), options.world_size) {
  CHECK_GE(std::ssize(memory), Bytes(options));
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % alignof(Bucket), 0);
}

void HostBoard::Clear() {
  for (Bucket& bucket : buckets_) {
    bucket.arrivals.store(0);
    bucket.updates.store(0);
  }
}

void HostBoard::Ring(int rank) {
  Bell& bell = bells_[rank];
  bell.value.fetch_add(1);
  switch (bell.watch.load()) {
    case kUnwatched:
      return WakeOthers(bell);
    case kWatcherSleeps:
      return Wake(bell, kLookingBit);
    default:
      return;
  }
}

void HostBoard::RingHere() {
  bells_[rank_].value.fetch_add(1);
  Wake(bells_[rank_], kEverybody);
}

void HostBoard::EndLooking(uint32_t seen) {
  Bell& bell = bells_[rank_];
  bell.watch.store(kUnwatched);
  if (bell.value.load() != seen) WakeOthers(bell);
}

void HostBoard::WakeOthers(Bell& bell) {
  // Without a sleeper a system call would cost a microsecond for nothing.
  if (bell.sleeper_count.load() > 0) Wake(bell, kOtherBit);
}

// All sleepers of a kind. A shared futex, because the other rank is another process.
void HostBoard::Wake(Bell& bell, uint32_t kinds) {
  syscall(SYS_futex, &bell.value, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, kinds);
}

void HostBoard::Sleep(uint32_t seen, std::chrono::microseconds longest, Sleeper sleeper) {
  if (longest.count() <= 0) return;
  // With a bitset the system call takes the end of the sleep, and not its length.
  timespec end = {};
  clock_gettime(CLOCK_MONOTONIC, &end);
  const int64_t nanoseconds = end.tv_nsec + longest.count() % 1'000'000 * 1000;
  end.tv_sec += longest.count() / 1'000'000 + nanoseconds / 1'000'000'000;
  end.tv_nsec = nanoseconds % 1'000'000'000;
  Bell& bell = bells_[rank_];
  const bool is_looking = sleeper == Sleeper::kLooking;
  if (is_looking) {
    bell.watch.store(kWatcherSleeps);
  } else {
    bell.sleeper_count.fetch_add(1);
  }
  syscall(SYS_futex, &bell.value, FUTEX_WAIT_BITSET, seen, &end, nullptr, is_looking ? kLookingBit : kOtherBit);
  if (is_looking) {
    bell.watch.store(kWatched);
  } else {
    bell.sleeper_count.fetch_sub(1);
  }
}

}  // namespace starring
