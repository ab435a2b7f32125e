// The ring (common/reduce/ring.h) over the buckets of a job: contributions are gradients, and a result is a chunk's new
// parameters. Floats of a GPU travel as one message for each bucket and hop.
#ifndef STARRING_WORKER_EXCHANGE_PEER_RING_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_RING_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/job/bucket_map.h"
#include "common/metrics/trace.h"
#include "common/reduce/ring.h"
#include "common/transport/transport.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

class RingMachine final : public BucketMachine, private RingSink {
 public:
  // This rank's memory and its right neighbour's, which both map (common/reduce/ring_memory.h). Empty: messages have
  // the elements.
  struct Memory {
    std::span<std::byte> own;
    std::span<std::byte> right;
  };
  // The bytes of each rank's.
  static int64_t MemoryBytes(int rank_count) { return RingMemory::BytesNeeded(rank_count); }
  // The floats that the machine allocates of an owner in the memory of a GPU.
  static int64_t GpuElements(const BucketMap& buckets);

  // The owner's part is its chunks (OwnerMap::SplitChunks).
  explicit RingMachine(const RankMachineOptions& options, const Memory& memory = {});

  void Submit(int64_t step, int bucket, std::span<const float> gradient) override;
  bool IsReady(int bucket) const override { return gradients_[bucket] == nullptr; }
  bool IsIdle() const override { return !ring_.has_value() || ring_->Oldest() == nullptr; }
  InFlight Oldest() const override;
  ExchangeCounters counters() const override;
  void OnCompletion(uint64_t /*operation*/) override { CHECK(false) << "the ring posts its operations itself"; }

 private:
  std::span<float> Allocate(int64_t count) override { return owner_.Allocate(count); }
  std::span<const float> Contribution(const RingSum& sum, ElementRange range) override;
  void CopyContribution(const RingSum& sum, ElementRange range, std::span<float> out) override;
  void Add(const RingSum& sum, ElementRange range, std::span<float> partial) override;
  void Finish(const RingSum& sum, ElementRange range, std::span<float> partial) override;
  std::span<std::byte> Result(const RingSum& sum, ElementRange range) override;
  void Copy(std::span<const std::byte> from, std::span<std::byte> to) override;
  void Complete() override;
  void OnReady(const RingSum& sum) override;
  void OnDone(const RingSum& /*sum*/) override {}

  std::span<float> Parameters(ElementRange range) const { return parameters_.subspan(range.begin, range.size()); }
  void Apply(const ApplyArgs& args);

  const BucketMap& buckets_;
  SliceOwner& owner_;
  const std::span<float> parameters_;
  TraceTrack* const track_;
  const bool is_in_memory_;
  const bool is_on_gpu_;                 // the owner enqueues its work
  std::vector<const float*> gradients_;  // by bucket; null: not in flight
  bool has_applied_ = false;             // since the last Complete, on a GPU
  double optimizer_seconds_ = 0;
  std::optional<Ring> ring_;  // none with one rank
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_RING_MACHINE_H_
