// Reductions of arrays in GPU memory, by ranks of one host that map each other's (shared_gpu_memory.h). Hosts pace
// them: no GPU waits for another one, so a rank that dies or is late holds up hosts alone.
//
// Words. A sum's *place* is its memory in a rank's piece. A sum's *stages* at a rank are 0 when the contribution has
// been copied to its place, and one more after each piece of *work*, a kernel on places. When a stage is reached, the
// rank tells those that wait for it where its place is. After the last piece of work and what else the sum needs, it is
// copied from the place to the array. These two copies are the only ones of an array. None passes through a host.
//
//   star  One piece of work: the owner of a slice reads it in all places, adds, and writes the sum into all places
//         (GpuStarSum). It needs stage 0 of all ranks, and the copy to the array needs stage 1 of all.
//   ring  2 (N - 1) pieces of work, of which the k-th needs stage k of the left neighbour: N - 1 additions to what
//         the neighbour has, the last of which makes the result of the own chunk, and then N - 1 copies from the
//         neighbour (GpuRingAdd, GpuRingCopy). The partial sums are where the contributions of float32 were, and
//         behind those of 16 bits. A chunk's result exists only after its partial sums have been read, so nothing
//         overwrites what a neighbour still reads. The last stage is told to the left, which may then use its place
//         for another sum.
//
// Slices, chunks, and the order of additions are those of the star and the ring in host memory (reduce_star.h,
// reduce_ring.h), and so are the bits, but for those of a NaN.
//
// Ranks that disagree about a head never add: a note has the head's hash.
#ifndef STARRING_WORKER_PYTHON_GPU_REDUCE_GPU_H_
#define STARRING_WORKER_PYTHON_GPU_REDUCE_GPU_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/reduce/arrays/reduce_machine.h"
#include "common/reduce/arrays/reduction.h"
#include "common/transport/memory/host_transport.h"
#include "worker/python/gpu/gpu_context.h"
#include "worker/python/gpu/gpu_queue.h"
#include "worker/python/gpu/gpu_sums.h"
#include "worker/python/gpu/shared_gpu_memory.h"

namespace starring {

class ReduceGpu final : public ReduceMachine {
 public:
  enum class Way { kStar, kRing };
  struct Options {
    HostTransport* transport = nullptr;  // with a board
    const GpuContext* context = nullptr;
    const SharedGpuMemory* memory = nullptr;
    Way way = Way::kStar;
    std::function<void()> ring;  // called by any thread: Transport::Poll has work
  };
  // REQUIRES: the objects to which the options refer outlive the machine, and there are no servers.
  static absl::StatusOr<std::unique_ptr<ReduceGpu>> Create(Options options);
  ~ReduceGpu() override;

  // InvalidArgument if the ranks' memory has no place for such a sum. Any thread.
  absl::Status CheckSize(const ReductionHead& head) const;
  // Copies of arrays to their places and back, which were begun. Any thread.
  int64_t copy_count() const { return copy_count_.load(); }

  void Stop() override;
  int64_t contributed_count() const override { return contributed_count_; }
  bool IsComputing() const override;
  std::string OwnDelay() const override;

 private:
  // A rank tells this about a stage of its sum. It is short enough for the board.
  struct Note {
    uint64_t hash = 0;  // of the head
    int64_t offset = 0;
    int64_t stage = 0;
  };
  struct Received {
    int from = 0;
    Note note;
  };
  struct Peer {
    int64_t stage = -1;
    int64_t offset = 0;
  };
  struct Sum {
    Reduction reduction;
    int64_t bytes = 0;
    int64_t offset = -1;  // of the place; -1 until a place is free
    int64_t stage = -1;
    bool is_busy = false;     // this rank's GPU is
    bool is_copied = false;   // to the array
    int64_t missing = 0;      // notes that are not sent, or not received
    std::vector<Peer> peers;  // by rank
    std::vector<Received> received;
    std::deque<Note> sent;
  };
  enum class Code { kCopiedIn, kWorked, kCopiedOut, kSent, kReceived };  // kReceived + i: the i-th note

  explicit ReduceGpu(Options options);
  void Start(const Reduction& reduction) override;
  void Advance(uint64_t operation) override;

  int64_t PlaceBytes(const ReductionHead& head) const;
  bool FindPlace(Sum& sum);
  void CopyIn();
  void GoOn(Sum& sum);
  bool MayWork(const Sum& sum) const;
  bool IsSummed(const Sum& sum) const;
  // Whether there is something to do: then it has begun.
  absl::StatusOr<bool> BeginWork(const Sum& sum);
  absl::StatusOr<bool> BeginStarSum(const Sum& sum);
  absl::StatusOr<bool> BeginHop(const Sum& sum);
  void ReachStage(Sum& sum);
  void Tell(Sum& sum, int rank);
  void Hear(Sum& sum, const Received& received);
  void EndIfDone(Sum& sum);
  // `code` comes when the queue's work until now has ended.
  void AwaitQueue(GpuQueue& queue, const Sum& sum, Code code);
  GpuRingChunk ChunkOf(const Sum& sum, int64_t chunk) const;
  Transport::Token TokenOf(const Sum& sum, int64_t code);

  bool is_star() const { return options_.way == Way::kStar; }
  int64_t work_count() const { return is_star() ? 1 : 2 * (worker_count() - 1); }
  int left() const { return (rank() + worker_count() - 1) % worker_count(); }
  int right() const { return (rank() + 1) % worker_count(); }
  std::byte* PlaceOf(int64_t offset, int rank) const { return options_.memory->piece(rank) + offset; }
  std::byte* OwnPlace(const Sum& sum) const { return PlaceOf(sum.offset, rank()); }

  const Options options_;
  std::atomic<int64_t> copy_count_ = 0;
  int64_t contributed_count_ = 0;
  std::map<int64_t, Sum> sums_;      // by number
  std::deque<int64_t> unplaced_;     // numbers, in order
  std::map<int64_t, int64_t> used_;  // places: offset and end
  // The copies of contributions wait for the model's streams, and must not hold up the work on other sums.
  std::unique_ptr<GpuQueue> arriving_, working_;
};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GPU_REDUCE_GPU_H_
