// The hops of a ring whose ranks map each other's GPU memory (worker/exchange/peer/gpu_ring_machine.h), as the ring
// asks for them.
//
// Thread safety: one thread at a time, any thread.
#ifndef STARRING_WORKER_EXCHANGE_PEER_GPU_RING_HOPS_H_
#define STARRING_WORKER_EXCHANGE_PEER_GPU_RING_HOPS_H_

#include <atomic>
#include <cstdint>

namespace starring {

// The hops of one rank in a round, as gpu_ring_machine.h names them.
struct RingSchedule {
  int rank = 0;
  int rank_count = 2;  // at least 2

  int hop_count() const { return 2 * (rank_count - 1); }
  // A signal before the first hop, and one after each.
  int signal_count() const { return hop_count() + 1; }
  // The chunk, or rank, `distance` places to the left. REQUIRES: 0 <= distance <= rank_count.
  int Left(int distance) const { return (rank - distance + rank_count) % rank_count; }
  int right() const { return Left(rank_count - 1); }
  // The chunk that this rank pulls in a hop.
  int ChunkOf(int hop) const { return hop < rank_count - 1 ? Left(2 + hop) : Left(2 + hop - rank_count); }
  bool Updates(int hop) const { return hop == rank_count - 2; }
  bool Copies(int hop) const { return hop >= rank_count - 1; }
};

// On the arrays of this rank and its left neighbour, in a chunk of a bucket as gpu_ring_machine.h has it. Each call
// begins a hop, and returns the number that hops_finished() reaches when the hop is done; it stays below after an
// error.
class RingHops {
 public:
  enum class From { kGradient, kPartialSum };  // the left neighbour's array
  // This rank's partial sum, which takes the place of its parameters = the left neighbour's array + this rank's
  // gradient.
  virtual int64_t BeginAdd(int bucket, int chunk, From from) = 0;
  // This rank's parameters of its own chunk = their update by such a sum.
  virtual int64_t BeginUpdate(int64_t step, int bucket, From from) = 0;
  // This rank's parameters = the left neighbour's.
  virtual int64_t BeginCopy(int bucket, int chunk) = 0;
  virtual const std::atomic<int64_t>& hops_finished() const = 0;

 protected:
  ~RingHops() = default;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_GPU_RING_HOPS_H_
