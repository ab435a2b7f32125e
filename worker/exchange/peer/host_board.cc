#include "worker/exchange/peer/host_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "common/check.h"

namespace starring {

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
  if (bell.is_watched.load() == 0) Wake(bell);
}

void HostBoard::RingHere() {
  bells_[rank_].value.fetch_add(1);
  Wake(bells_[rank_]);
}

void HostBoard::EndLooking(uint32_t seen) {
  Bell& bell = bells_[rank_];
  bell.is_watched.store(0);
  if (bell.value.load() != seen) Wake(bell);
}

void HostBoard::Wake(Bell& bell) {
  // Without a sleeper a system call would cost a microsecond for nothing.
  if (bell.sleeper_count.load() == 0) return;
  // All of them: the trainer's thread and the one in the background may both sleep. A shared futex, because the other
  // rank is another process.
  syscall(SYS_futex, &bell.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void HostBoard::Sleep(uint32_t seen, std::chrono::microseconds longest) {
  if (longest.count() <= 0) return;
  Bell& bell = bells_[rank_];
  const timespec timeout = {.tv_sec = longest.count() / 1'000'000, .tv_nsec = longest.count() % 1'000'000 * 1000};
  bell.sleeper_count.fetch_add(1);
  syscall(SYS_futex, &bell.value, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  bell.sleeper_count.fetch_sub(1);
}

}  // namespace starring
