// The hops of a ring whose ranks map each other's GPU memory (worker/exchange/peer/gpu_ring_machine.h), as the ring
// asks for them.
//
// Thread safety: one thread at a time, any thread.
#ifndef STARRING_WORKER_EXCHANGE_PEER_GPU_RING_HOPS_H_
#define STARRING_WORKER_EXCHANGE_PEER_GPU_RING_HOPS_H_

#include <atomic>
#include <cstdint>

namespace starring {

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
