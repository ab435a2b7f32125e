// The star (common/reduce/star.h) over the buckets of a job: contributions are gradients, and a result is the new
// parameters. The ranks are the owners, or the last ranks of the world are: servers (server/shard/shard_rank.h), which
// get one message for each slice of a bucket. With micro-batches, each rank contributes the nodes of its share
// (common/job/leaf_shares.h). They leave when the last one is submitted: a share has more than one node only where the
// ranks do not divide the leaves evenly. Floats of a GPU travel as one message for each slice, too. A short last block
// that few ranks own is another message.
#ifndef STARRING_WORKER_EXCHANGE_PEER_STAR_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_STAR_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/job/bucket_map.h"
#include "common/job/owned_slices.h"
#include "common/metrics/trace.h"
#include "common/reduce/owner_map.h"
#include "common/reduce/star.h"
#include "common/reduce/star_sink.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

class StarMachine final : public BucketMachine, private StarSink {
 public:
  struct Job {
    SumOrder sum_order = SumOrder::kChain;
    int micro_batches = 0;  // as JobSpec's; with any, floats are in host memory
    int server_count = 0;   // the last ranks of the world; 0: the ranks are the owners
  };
  // The floats that the machine allocates, at most, of an owner in the memory of a GPU.
  static int64_t GpuElements(const BucketMap& buckets);

  // The owner's part is OwnerMap::JoinedChunks; with servers, which have OwnerMap::ShardRanges, nothing.
  StarMachine(const RankMachineOptions& options, const Job& job);

  void Submit(int64_t step, int bucket, std::span<const float> gradient) override;
  void SubmitNode(int64_t step, int bucket, int node, std::span<const float> gradient) override;
  bool IsReady(int bucket) const override { return !in_flight_[bucket]; }
  bool IsIdle() const override { return !star_.has_value() || star_->Oldest() == nullptr; }
  InFlight Oldest() const override;
  ExchangeCounters counters() const override;
  void OnCompletion(uint64_t operation) override;

 private:
  std::span<std::byte> Allocate(int64_t bytes) override;
  std::span<const std::byte> Contribution(const StarSum& sum, int node, ElementRange range) override;
  std::span<std::byte> Result(const StarSum& sum, ElementRange range) override;
  void Add(const StarSum& sum, std::span<const std::byte> from, std::span<std::byte> into) override;
  Finished FinishParts(const StarSum& sum, const Output& output, const Parts& parts) override;
  Finished FinishAll(const StarSum& sum, const Output& output, std::span<std::byte* const> contributions) override;
  void Copy(std::span<const std::byte> from, std::span<std::byte> to) override;
  void Complete() override;
  void OnReady(const StarSum& sum) override { in_flight_[sum.number] = false; }

  Star::Options StarOptions(const RankMachineOptions& options, const Job& job);
  void FinishRuns(const StarSum& sum, ElementRange range, std::span<std::byte* const> contributions);
  void FinishNodes(const StarSum& sum, ElementRange range, std::span<std::byte* const> contributions);
  void FinishInChain(const StarSum& sum, ElementRange run, std::span<std::byte* const> contributions, int first_rank);
  void FinishAsTree(const StarSum& sum, ElementRange range, std::span<std::byte* const> contributions);
  std::span<float> AddAsTree(LeafRange ranks, ElementRange range, std::span<std::byte* const> contributions);
  void Apply(const ApplyArgs& args);
  std::span<float> Parameters(ElementRange range) const { return parameters_.subspan(range.begin, range.size()); }

  const BucketMap& buckets_;
  SliceOwner* const owner_;
  const std::span<float> parameters_;
  TraceTrack* const track_;
  const bool is_on_gpu_;  // the owner enqueues its work
  const SumOrder sum_order_;
  const int rank_;
  const int worker_count_;
  const OwnerMap owners_;
  std::vector<int> leaves_;                           // by contributor, with micro-batches
  std::vector<bool> in_flight_;                       // by bucket
  std::vector<std::vector<const float*>> gradients_;  // by node of this rank, then bucket
  bool has_applied_ = false;                          // since the last Complete, on a GPU
  double optimizer_seconds_ = 0;
  std::optional<Star> star_;  // none with one rank
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_STAR_MACHINE_H_
