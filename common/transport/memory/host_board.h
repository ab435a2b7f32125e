// A board in memory that all processes of one world map, if they are on one host. It shows how far each bucket is,
// carries short messages, and lets a process sleep until another one changes the board. Ranks below are those of the
// world, servers among them.
//
// Words. A bucket's *arrivals* count the ranks that have submitted it, its *updates* count the owners that have written
// their slice of it: over all steps, so that neither is ever set back. Each ordered pair of ranks has a *queue* of
// messages (a ring buffer of one producer and one consumer: Lamport, "Proving the correctness of multiprocess
// programs", 1977). Each rank has a *bell*, a number that others increase when a count is complete for which that rank
// may wait, or when a message has come, and on which it sleeps (a futex).
//
// Order of memory. A rank that has read the new count, or taken the message, sees everything that the other rank wrote
// before its Arrive, Update or Send.
//
// No wake-up is lost: a rank reads its bell before it looks at the counts, and sleeps only if the bell still has that
// value. Ring first increases the bell and then looks whether a thread sleeps; a sleeper first says that it sleeps and
// then compares the bell. While one thread of a rank *looks*, again and again, and sleeps in between, the rank's other
// threads are not woken. The looking thread finds every new count, and waking another thread costs more than a small
// bucket. A thread that stops looking first says so and then compares the bell.
//
// A rank that dies leaves its counts as they are. It blocks no other rank, because the memory has no lock.
//
// Thread safety: any thread of any process, except that Send and Take of one rank are called by one thread at a time.
#ifndef STARRING_COMMON_TRANSPORT_MEMORY_HOST_BOARD_H_
#define STARRING_COMMON_TRANSPORT_MEMORY_HOST_BOARD_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace starring {

class HostBoard {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    int bucket_count = 0;
  };
  // `memory` is the same on all ranks, zeroed before the first of them uses it, has Bytes(options) bytes, begins at a
  // cache line and outlives the board.
  HostBoard(std::span<std::byte> memory, const Options& options);
  HostBoard(const HostBoard&) = delete;
  HostBoard& operator=(const HostBoard&) = delete;

  static int64_t Bytes(const Options& options);

  // The longest message that the board carries.
  static constexpr size_t kMessageBytesMax = 56;

  // Counts one more rank, or owner, and returns the new count.
  int64_t Arrive(int bucket) { return buckets_[bucket].arrivals.fetch_add(1) + 1; }
  int64_t Update(int bucket) { return buckets_[bucket].updates.fetch_add(1) + 1; }

  // The counters; valid as long as the memory. Read them with acquire order.
  const std::atomic<int64_t>& arrivals(int bucket) const { return buckets_[bucket].arrivals; }
  const std::atomic<int64_t>& updates(int bucket) const { return buckets_[bucket].updates; }

  // Puts a message into the queue to `rank` and rings. False if the queue is full: `rank` then rings this rank's bell
  // when it has taken messages. REQUIRES: data.size() <= kMessageBytesMax.
  [[nodiscard]] bool Send(int rank, int tag, std::span<const std::byte> data);
  // Calls visit(sender, tag, data) for each message that has come, in each queue's order. Internal if a sender has
  // overwritten the board.
  absl::Status Take(absl::FunctionRef<void(int from, int tag, std::span<const std::byte> data)> visit);

  // Sets all counts to zero. REQUIRES: no rank uses them, and no rank will use them before it receives a message from
  // this one.
  void Clear();

  // Wakes `rank`, if it sleeps and does not look.
  void Ring(int rank);
  // Wakes this rank's sleepers, also while one of its threads looks.
  void RingHere();
  // This rank's bell, to be read before the counts are looked at.
  uint32_t bell() const { return bells_[rank_].value.load(); }
  // Between the two, a thread of this rank looks at the counts without a pause of more than microseconds. EndLooking
  // wakes the other threads if the bell is not `seen` any more.
  void BeginLooking() { bells_[rank_].watch.store(kWatched); }
  void EndLooking(uint32_t seen);
  // Sleeps until the bell has another value than `seen`, or for `longest`. May return early. kLooking: between
  // BeginLooking and EndLooking; then a bell wakes this thread alone.
  enum class Sleeper { kLooking, kOther };
  void Sleep(uint32_t seen, std::chrono::microseconds longest, Sleeper sleeper = Sleeper::kOther);

 private:
  // Each on a cache line of its own, because different ranks write them.
  struct Bucket {
    alignas(64) std::atomic<int64_t> arrivals;
    alignas(64) std::atomic<int64_t> updates;
  };
  struct Bell {
    alignas(64) std::atomic<uint32_t> value;
    std::atomic<uint32_t> sleeper_count;  // of kind kOther
    std::atomic<uint32_t> watch;
  };
  struct Message {
    int32_t tag;
    uint32_t bytes;
    std::byte data[kMessageBytesMax];
  };
  static constexpr uint32_t kQueueMessages = 32;
  // The sender counts what it has put in, the receiver what it has taken out.
  struct Queue {
    alignas(64) std::atomic<uint32_t> put;
    alignas(64) std::atomic<uint32_t> taken;
    alignas(64) Message messages[kQueueMessages];
  };
  // Which senders have sent something since the receiver has looked: a bit for each rank.
  struct alignas(64) Senders {
    std::atomic<uint64_t> bits;
  };
  static int64_t SenderWords(int world_size) { return (world_size + 63) / 64; }
  Queue& QueueOf(int from, int to) { return queues_[static_cast<int64_t>(to) * world_size_ + from]; }
  std::span<Senders> SendersTo(int to) {
    return senders_.subspan(to * SenderWords(world_size_), SenderWords(world_size_));
  }
  absl::Status TakeFrom(int from, absl::FunctionRef<void(int, int, std::span<const std::byte>)> visit);

  // The watch of a bell: no thread looks, one thread looks, or that thread sleeps.
  static constexpr uint32_t kUnwatched = 0, kWatched = 1, kWatcherSleeps = 2;
  static void WakeOthers(Bell& bell);
  static void Wake(Bell& bell, uint32_t kinds);
  static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free &&
                    std::atomic<uint32_t>::is_always_lock_free,
                "a lock of the library would be one of this process only");

  const int rank_;
  const int world_size_;
  const std::span<Bucket> buckets_;
  const std::span<Bell> bells_;       // by rank
  const std::span<Senders> senders_;  // by receiver
  const std::span<Queue> queues_;     // by receiver, then sender
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MEMORY_HOST_BOARD_H_
