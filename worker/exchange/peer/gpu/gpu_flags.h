// The flags by which the GPUs of one host wait for each other in the order of their streams (CudaPeerBoard). They are
// in memory of the host that all ranks map, so hosts can read them and end a GPU's wait.
//
// Words. A bucket has two words: *arrived*, in which byte r belongs to rank r, and *updated*, in which byte r belongs
// to owner r. In a round of slot s a rank stores s + 1 to its byte of `arrived` when its gradient is complete and it
// reads the bucket's parameters no more. An owner stores s + 1 to its byte of `updated` when the parameters are with
// all ranks. A GPU waits until a whole word has the value of the round: an owner's for `arrived` before it updates its
// slice, every rank's for `updated` before the next round. Bytes of ranks that do not exist, or own nothing of the
// bucket, stay 0.
//
// Equality is enough. A rank arrives in round t + 1 only after all owners updated t, and an owner updates t + 1 only
// after all ranks arrived in t + 1. So a GPU that waits for round t sees bytes of t - 1 and t alone. A rank that owns
// nothing of a bucket must not wait for its arrivals: no update waits for that rank to have seen them, so the next ones
// may come first.
//
// A ring has a word for each bucket, rank and *signal* of gpu_ring_machine.h, in which a GPU stores s + 1. The right
// neighbour waits for a rank's signals before each of its hops, and the left neighbour waits for the last one at the
// round's end. Equality is enough here too: a rank gives no signal of round t + 1 before its right neighbour's last
// signals of t, and that one has then seen all others of t. The last signal of t + 1 needs a hop of the left neighbour
// in t + 1, which begins behind its wait for that of t.
//
// Findings. The kernel that adds a gradient notes which rank's is not finite, by slot and bucket; in a ring also the
// first hop, which pulls it. They are never reset, because a run ends with the first one.
//
// Release. When a rank gives up, the others' GPUs would wait for it for ever. Any host that hears of it sets a word
// that says that results are void, and then gives all words the values of one slot after the other, so that the GPUs
// drain. A kernel that finds results void touches no memory of other ranks, which may have gone.
#ifndef STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_FLAGS_H_
#define STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_FLAGS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/peer/gpu/ring_hops.h"
#include "worker/exchange/stream_exchange.h"

namespace starring {

// Thread safety: the device's thread, except for what is said to be for any thread.
class GpuFlags {
 public:
  struct Options {
    CudaDevice* device = nullptr;
    int rank = 0;
    int rank_count = 0;  // at most kPeerRanksMax
    // By bucket of the job, then rank: whether the rank owns a part of it.
    std::vector<std::vector<bool>> owners;
    bool is_ring = false;
    // Bytes(...) of them, zero at first, the same on all ranks. They outlive the flags, as the device does.
    std::span<std::byte> memory;
  };
  static int64_t Bytes(int bucket_count, int rank_count, bool is_ring);
  // One more bucket, for a trial: all ranks own a part of it.
  int trial_bucket() const { return static_cast<int>(options_.owners.size()); }
  // Unavailable, with the reason, if this GPU's streams cannot wait so.
  static absl::StatusOr<std::unique_ptr<GpuFlags>> Create(Options options);

  // Whether this rank has a part of `bucket`.
  bool IsOwner(int bucket) const { return OwnersOf(bucket)[options_.rank]; }

  // Each enqueues on a stream, captured or not: this rank's arrival; an owner's wait for all arrivals; and the wait for
  // the updates of all buckets of [first, end).
  absl::Status Arrive(CudaStream* stream, int slot, int bucket);
  absl::Status AwaitArrivals(CudaStream* stream, int slot, int bucket);
  absl::Status AwaitUpdates(CudaStream* stream, int slot, int first, int end);
  // An owner's update of its slice of the bucket, which may be empty, and its byte of `updated`.
  absl::Status Update(CudaStream* stream, int slot, int bucket, const CudaStepValues* values,
                      const OptimizerConfig& config, const CudaPeerUpdate& update);

  // A ring's, on a stream as well. This rank's signal number `signal` (gpu_ring_machine.h); the wait for the left
  // neighbour's, without which hop `signal` must not begin; and the wait for the right neighbour's last signals of all
  // buckets, which says that it reads this rank's arrays no more.
  absl::Status Signal(CudaStream* stream, int slot, int bucket, int signal);
  absl::Status AwaitLeft(CudaStream* stream, int slot, int bucket, int signal);
  absl::Status AwaitRight(CudaStream* stream, int slot);
  // Hop `hop`, which may have no elements, and the signal behind it. `reads_gradient`: the left neighbour's array is
  // its gradient.
  absl::Status RunHop(CudaStream* stream, int slot, int bucket, int hop, bool reads_gradient, const CudaPeerHop& work);
  absl::Status RunUpdate(CudaStream* stream, int slot, int bucket, int hop, bool reads_gradient,
                         const CudaStepValues* values, const OptimizerConfig& config, const CudaPeerUpdate& update);
  const RingSchedule& schedule() const { return schedule_; }

  std::optional<StreamExchange::NonFinite> FindNonFinite(int slot) const;

  // The first bucket of the job for which this rank's GPU waits, in the round in which it is, and the ranks that have
  // to store a byte. `ranks` is empty, or has this rank, if the GPU waits for no other one: it computes. Any thread.
  struct Lag {
    int slot = 0;
    int bucket = 0;
    std::vector<int> ranks;
  };
  Lag FindLag() const;

  // Says that results are void. Any thread.
  void SayVoid();
  bool is_void() const;
  // Gives all words the value of one slot; which one, all hosts read from one clock. To be called every kReleasePause,
  // after SayVoid, until the GPU has drained. Any thread.
  void Release();
  static constexpr std::chrono::microseconds kReleasePause{500};

 private:
  // In the order of memory; then the findings, by slot, bucket and rank; then a ring's words, by bucket, rank and
  // signal.
  struct Head {
    std::atomic<uint64_t> is_void;
    uint64_t unused[7];
  };
  struct Words {
    std::atomic<uint64_t> arrived, updated;
  };
  static_assert(sizeof(Head) == 64 && sizeof(Words) == 16 && std::atomic<uint64_t>::is_always_lock_free,
                "GPUs see these bytes");

  explicit GpuFlags(Options options);
  int bucket_count() const { return static_cast<int>(words_.size()); }  // with that of the trial
  const std::vector<bool>& OwnersOf(int bucket) const {
    return bucket == trial_bucket() ? all_ranks_ : options_.owners[bucket];
  }
  uint64_t ValueOf(int slot, const std::vector<bool>& ranks) const;
  int64_t* Finding(int slot, int bucket) const;
  static uint64_t* Word(std::atomic<uint64_t>& word) { return reinterpret_cast<uint64_t*>(&word); }
  uint8_t* OwnByte(std::atomic<uint64_t>& word) const { return reinterpret_cast<uint8_t*>(&word) + options_.rank; }
  std::atomic<uint64_t>& RingWord(int bucket, int rank, int signal) const {
    return ring_words_[(bucket * options_.rank_count + rank) * schedule_.signal_count() + signal];
  }
  CudaPeerBoard::Signal SignalOf(int slot, int bucket, int signal) const;
  // How many signals of the round in `slot` the rank has given in the bucket.
  int SignalsOf(int slot, int bucket, int rank) const;
  // Where a GPU of a ring is: it has the next signal of `rank` in `bucket` to give, in the round in `slot`.
  struct RingPlace {
    int slot = 0;
    int bucket = 0;
    int rank = 0;
  };
  // For which place of another rank the GPU at this place waits; none if it waits for no other.
  std::optional<RingPlace> AwaitedBy(const RingPlace& place) const;
  // The rank at the end of the chain of waits that begins at this place.
  int LastOfChain(RingPlace place) const;
  Lag FindRingLag() const;
  // The ranks whose bytes have neither the value of `slot` nor that of the next one.
  std::vector<int> Lacking(const std::atomic<uint64_t>& word, int slot, const std::vector<bool>& ranks) const;

  const Options options_;
  const std::vector<bool> all_ranks_;
  Head& head_;
  const std::span<Words> words_;  // by bucket
  const RingSchedule schedule_;
  const std::span<std::atomic<uint64_t>> ring_words_;
  std::unique_ptr<CudaPeerBoard> board_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_FLAGS_H_
