#include "common/transport/memory/host_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// Which sleepers a system call wakes.
constexpr uint32_t kLookingBit = 1;
constexpr uint32_t kOtherBit = 2;
constexpr uint32_t kEverybody = kLookingBit | kOtherBit;

}  // namespace

int64_t HostBoard::Bytes(const Options& options) {
  const int64_t ranks = options.world_size;
  return options.bucket_count * static_cast<int64_t>(sizeof(Bucket)) + ranks * static_cast<int64_t>(sizeof(Bell)) +
         ranks * SenderWords(options.world_size) * static_cast<int64_t>(sizeof(Senders)) +
         ranks * ranks * static_cast<int64_t>(sizeof(Queue));
}

// Zeroed memory is an atomic zero for every ABI that this runs on, so no rank constructs the counts: the first one that
// maps the memory could not know that it is the first.
HostBoard::HostBoard(std::span<std::byte> memory, const Options& options)
    : rank_(options.rank),
      world_size_(options.world_size),
      buckets_(reinterpret_cast<Bucket*>(memory.data()), options.bucket_count),
      bells_(reinterpret_cast<Bell*>(buckets_.data() + buckets_.size()), options.world_size),
      senders_(reinterpret_cast<Senders*>(bells_.data() + bells_.size()),
               options.world_size * SenderWords(options.world_size)),
      queues_(reinterpret_cast<Queue*>(senders_.data() + senders_.size()),
              static_cast<size_t>(options.world_size) * options.world_size) {
  CHECK_GE(std::ssize(memory), Bytes(options));
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % alignof(Bucket), 0);
}

bool HostBoard::Send(int rank, int tag, std::span<const std::byte> data) {
  CHECK_LE(data.size(), kMessageBytesMax);
  Queue& queue = QueueOf(rank_, rank);
  const uint32_t put = queue.put.load(std::memory_order_relaxed);
  // Differences of unsigned counts are right also when the counts wrap.
  if (put - queue.taken.load() >= kQueueMessages) return false;
  Message& message = queue.messages[put % kQueueMessages];
  message.tag = tag;
  message.bytes = static_cast<uint32_t>(data.size());
  std::ranges::copy(data, message.data);
  // The message is there before the count says so, and the count before the bit. The receiver reads them the other way
  // round.
  queue.put.store(put + 1);
  SendersTo(rank)[rank_ / 64].bits.fetch_or(uint64_t{1} << (rank_ % 64));
  Ring(rank);
  return true;
}

absl::Status HostBoard::Take(absl::FunctionRef<void(int, int, std::span<const std::byte>)> visit) {
  const std::span<Senders> words = SendersTo(rank_);
  for (size_t word = 0; word < words.size(); ++word) {
    // An exchange costs as much as the whole look, and seldom finds anything.
    if (words[word].bits.load() == 0) continue;
    // Cleared before the queues are read: a message that comes meanwhile sets its bit again.
    for (uint64_t bits = words[word].bits.exchange(0); bits != 0; bits &= bits - 1) {
      const int from = static_cast<int>(word) * 64 + std::countr_zero(bits);
      if (from >= world_size_) return absl::InternalError(absl::StrCat("the shared board names rank ", from));
      RETURN_IF_ERROR(TakeFrom(from, visit));
    }
  }
  return absl::OkStatus();
}

absl::Status HostBoard::TakeFrom(int from, absl::FunctionRef<void(int, int, std::span<const std::byte>)> visit) {
  Queue& queue = QueueOf(from, rank_);
  const uint32_t put = queue.put.load();
  uint32_t taken = queue.taken.load(std::memory_order_relaxed);
  const uint32_t count = put - taken;
  if (count > kQueueMessages) {
    return absl::InternalError(absl::StrCat("rank ", from, " has put ", count,
                                            " messages on the shared board, at most ", kQueueMessages,
                                            " fit: its memory is damaged"));
  }
  for (; taken != put; ++taken) {
    const Message& message = queue.messages[taken % kQueueMessages];
    // Read once: another process may write here between check and use.
    const uint32_t bytes = *static_cast<const volatile uint32_t*>(&message.bytes);
    if (bytes > kMessageBytesMax) {
      return absl::InternalError(absl::StrCat("rank ", from, " has put a message of ", bytes,
                                              " bytes on the shared board, at most ", kMessageBytesMax,
                                              " fit: its memory is damaged"));
    }
    visit(from, message.tag, {message.data, bytes});
  }
  queue.taken.store(taken);
  // The sender may have found the queue full at any time since `put` was read.
  if (count == kQueueMessages || queue.put.load() - taken > 0) Ring(from);
  return absl::OkStatus();
}

void HostBoard::Clear() {
  for (Bucket& bucket : buckets_) {
    bucket.arrivals.store(0);
    bucket.updates.store(0);
  }
}

void HostBoard::Ring(int rank) {
  Bell& bell = bells_[rank];
  // The value changes before the watch is read, and a sleeper sets the watch before the kernel compares the value
  // (Sleep). So one of the two notices the other.
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
  // A ring while this thread was looking has woken no other sleeper.
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
