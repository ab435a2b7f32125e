#include "worker/exchange/peer/star_machine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/arithmetic/sum_in_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/job/leaf_shares.h"
#include "common/reduce/star_memory.h"
#include "common/transport/shard_wire.h"

namespace starring {
namespace {

std::span<float> Floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<const float> Floats(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<float> Floats(std::byte* begin, ElementRange range) {
  return Floats(std::span(begin, range.size() * sizeof(float)));
}

int64_t Bytes(int64_t elements) { return elements * static_cast<int64_t>(sizeof(float)); }

// The slots of an owner on a GPU. Where few ranks own a short last block, its bucket is two pieces for them.
int GpuSlots(const BucketMap& buckets) {
  const int ranks = buckets.world_size();
  const ElementRange last = buckets.last_block();
  const bool is_apart = OwnerMap::JoinedChunks(ranks).OwnersOfBlock(last) < ranks;
  const bool has_others = last.size() < buckets.bucket(0).size();
  return GpuBucketsInFlightMax(buckets) + (is_apart && has_others ? 1 : 0);
}

}  // namespace

StarMachine::StarMachine(const RankMachineOptions& options, const Job& job)
    : buckets_(*options.buckets),
      owner_(options.owner),
      parameters_(options.parameters),
      track_(options.track),
      is_on_gpu_(job.server_count == 0 && !owner_->own_parameters().empty()),
      sum_order_(job.sum_order),
      rank_(options.transport->rank()),
      worker_count_(options.transport->world_size() - job.server_count),
      owners_(job.server_count > 0 ? OwnerMap::ShardRanges(job.server_count) : OwnerMap::JoinedChunks(worker_count_)),
      in_flight_(buckets_.bucket_count(), false) {
  CHECK(job.server_count > 0 || buckets_.world_size() == worker_count_) << buckets_.world_size();
  CHECK_EQ(buckets_.element_count(), parameters_.size());
  for (const Contributor& one : ContributorsOf(DealLeavesEvenly(job.micro_batches, worker_count_))) {
    if (job.micro_batches > 0) leaves_.push_back(one.leaves.size());
    if (one.rank == rank_) gradients_.emplace_back(buckets_.bucket_count(), nullptr);
  }
  if (options.transport->world_size() > 1) star_.emplace(StarOptions(options, job));
}

Star::Options StarMachine::StarOptions(const RankMachineOptions& options, const Job& job) {
  Star::Options star = {.transport = options.transport,
                        .sink = this,
                        .server_count = job.server_count,
                        .first_tag = options.first_tag,
                        .contributors = {},
                        .track = track_,
                        .memory = {},
                        .shared = {}};
  for (const Contributor& one : ContributorsOf(DealLeavesEvenly(job.micro_batches, worker_count_))) {
    star.contributors.push_back({.rank = one.rank, .node = one.node});
  }
  if (job.server_count > 0) {
    // A slice is one message.
    star.message_bytes_max = buckets_.bucket_bytes();
    star.slot_count = ShardSlots(buckets_.bucket_count());
    // No window: a slow server must not hold up the slices of the others.
    star.window_bytes = 0;
    return star;
  }
  star.plan = job.sum_order == SumOrder::kChain ? Order::Plan::kChain : Order::Plan::kTree;
  // The nodes of micro-batches are added as a tree over the leaves, when all are there (FinishNodes).
  if (job.micro_batches > 0) star.plan = Order::Plan::kAll;
  star.slot_count =
      options.groups_in_flight_max > 0 ? options.groups_in_flight_max : RingBlocksInFlightMax(worker_count_);
  star.message_bytes_max = job.micro_batches == 0 ? kChunkBytesMax : 0;
  if (is_on_gpu_) {
    CHECK_EQ(job.micro_batches, 0) << "micro-batches are in host memory";
    // The usual blocks of a slice are one message. They are added when all contributions are there, so that the GPU is
    // waited for once. All ranks have GPUs, or none has.
    star.plan = Order::Plan::kAll;
    star.message_bytes_max = buckets_.bucket_bytes();
    star.window_bytes = std::max(kStarWindowBytes, buckets_.bucket_bytes());
    star.packs_together = true;
    if (options.groups_in_flight_max == 0) star.slot_count = GpuSlots(buckets_);
  }
  const int64_t chunk_bytes = ChunkBytesFor(worker_count_);
  // A message carries as many chunks as fit, but never chunks of two buckets.
  const int64_t bucket_blocks = buckets_.bucket_bytes() / Bytes(ReductionBlockElements(worker_count_));
  const int64_t blocks =
      std::clamp<int64_t>(star.message_bytes_max / chunk_bytes, 1, std::max<int64_t>(bucket_blocks, 1));
  star.sizes = {.piece_bytes_max = blocks * chunk_bytes, .have_several_ranges = blocks > 1};
  const ElementRange last = buckets_.last_block();
  // A short last block has fewer owners than ranks. Each of them has several chunks of it, in one piece.
  if (owners_.OwnersOfBlock(last) < worker_count_) {
    star.sizes.joined_bytes_max = Bytes(owners_.SliceOfBlock(last, rank_).size());
  }
  CHECK(!is_on_gpu_ || (star.shared.empty() && !star.is_shared)) << "work on a GPU is enqueued: StarSink";
  return star;
}

int64_t StarMachine::GpuElements(const BucketMap& buckets) {
  const int ranks = buckets.world_size();
  if (ranks == 1) return 0;
  const int64_t block = ReductionBlockElements(ranks);
  const int64_t blocks = buckets.bucket_bytes() / Bytes(block);
  const auto place = [](int64_t elements) {
    return StarMemory::PlaceBytes(Bytes(elements)) / static_cast<int64_t>(sizeof(float));
  };
  // Pieces of one range arrive where they stay. Others are packed, with a place for each of the other owners and one
  // for the own result.
  const int64_t packed = blocks > 1 ? ranks * place(blocks * ChunkElements(ranks)) : 0;
  int64_t slice = blocks * ChunkElements(ranks);
  const OwnerMap owners = OwnerMap::JoinedChunks(ranks);
  for (int owner = 0; owner < ranks; ++owner) {
    // A rank may own all of a short last block.
    slice = std::max(slice, owners.SliceOfBlock(buckets.last_block(), owner).size());
  }
  return GpuSlots(buckets) * ((ranks - 1) * place(slice) + packed);
}

void StarMachine::SubmitNode(int64_t /*step*/, int bucket, int node, std::span<const float> gradient) {
  CHECK_EQ(std::ssize(gradient), buckets_.bucket(bucket).size());
  CHECK_LT(static_cast<size_t>(node), gradients_.size());
  gradients_[node][bucket] = gradient.data();
}

void StarMachine::Submit(int64_t step, int bucket, std::span<const float> gradient) {
  const ElementRange range = buckets_.bucket(bucket);
  CHECK(IsReady(bucket)) << "bucket " << bucket << " submitted twice without Await";
  // This gradient is the last node's. Those before it came by SubmitNode, and leave with it.
  SubmitNode(step, bucket, static_cast<int>(gradients_.size()) - 1, gradient);
  if (!star_.has_value()) {
    const TraceSpan span(track_, "apply", {.step = step, .bucket = bucket});
    Apply({.step = step, .bucket = bucket, .range = range, .sum = gradient, .parameters = Parameters(range)});
    return Complete();
  }
  in_flight_[bucket] = true;
  star_->Submit({.number = bucket, .elements = range, .owners = owners_, .labels = {.step = step, .bucket = bucket}});
}

void StarMachine::OnCompletion(uint64_t /*operation*/) { CHECK(false) << "the star posts its operations itself"; }

BucketMachine::InFlight StarMachine::Oldest() const {
  CHECK(!IsIdle());
  const StarSum& sum = *star_->Oldest();
  return {.step = sum.labels.step, .bucket = sum.labels.bucket};
}

ExchangeCounters StarMachine::counters() const {
  return {.bytes_sent = star_.has_value() ? star_->bytes_sent() : 0,
          .bytes_received = star_.has_value() ? star_->bytes_received() : 0,
          .optimizer_seconds = optimizer_seconds_};
}

std::span<std::byte> StarMachine::Allocate(int64_t bytes) {
  return std::as_writable_bytes(owner_->Allocate(bytes / static_cast<int64_t>(sizeof(float))));
}

std::span<const std::byte> StarMachine::Contribution(const StarSum& sum, int node, ElementRange range) {
  const int64_t at = range.begin - sum.elements.begin;
  return std::as_bytes(std::span(gradients_[node][sum.number] + at, range.size()));
}

std::span<std::byte> StarMachine::Result(const StarSum& /*sum*/, ElementRange range) {
  return std::as_writable_bytes(Parameters(range));
}

void StarMachine::Add(const StarSum& /*sum*/, std::span<const std::byte> from, std::span<std::byte> into) {
  owner_->Add(Floats(from), Floats(into));
}

StarSink::Finished StarMachine::FinishParts(const StarSum& sum, const Output& output, const Parts& parts) {
  Apply({.step = sum.labels.step,
         .bucket = sum.labels.bucket,
         .range = output.range,
         .sum = Floats(parts.part),
         .last = Floats(parts.other),
         .parameters = Parameters(output.range)});
  CopyToAnswer(output);
  return Finished::kNow;
}

StarSink::Finished StarMachine::FinishAll(const StarSum& sum, const Output& output,
                                          std::span<std::byte* const> contributions) {
  if (!leaves_.empty()) {
    FinishNodes(sum, output.range, contributions);
  } else if (sum_order_ == SumOrder::kChain) {
    FinishRuns(sum, output.range, contributions);
  } else {
    FinishAsTree(sum, output.range, contributions);
  }
  CopyToAnswer(output);
  return Finished::kNow;
}

void StarMachine::FinishRuns(const StarSum& sum, ElementRange range, std::span<std::byte* const> contributions) {
  // The chain of each run begins with another rank (reduction_order.h), so a run is added by itself.
  ForEachRun(range, buckets_.element_count(), {.order = SumOrder::kChain, .world_size = buckets_.world_size()},
             [&](ElementRange run, int first_rank) {
               std::vector<std::byte*> of_run;
               for (std::byte* const one : contributions) of_run.push_back(one + Bytes(run.begin - range.begin));
               FinishInChain(sum, run, of_run, first_rank);
             });
}

// In pieces whose sum stays in the L1 cache, where the optimizer reads it.
void StarMachine::FinishNodes(const StarSum& sum, ElementRange range, std::span<std::byte* const> contributions) {
  alignas(64) float total[OwnedSlices::kPassElements];
  std::vector<const std::byte*> terms(contributions.size());
  for (int64_t begin = range.begin; begin < range.end; begin += OwnedSlices::kPassElements) {
    const ElementRange pass = {begin, std::min(begin + OwnedSlices::kPassElements, range.end)};
    for (size_t i = 0; i < terms.size(); ++i) terms[i] = contributions[i] + Bytes(begin - range.begin);
    const std::span<float> out(total, pass.size());
    SumAsTree(terms, out, BestInstructionSet(), leaves_);
    Apply({.step = sum.labels.step,
           .bucket = sum.labels.bucket,
           .range = pass,
           .sum = out,
           .parameters = Parameters(pass)});
  }
}

// The floats may be a GPU's, where the owner adds two arrays at a time. The sum is made where the first contribution
// is. The own one must not be overwritten, but a + b = b + a, so then it is made where the second one is.
void StarMachine::FinishInChain(const StarSum& sum, ElementRange run, std::span<std::byte* const> contributions,
                                int first_rank) {
  const int world_size = buckets_.world_size();
  const auto term = [&](int position) { return Floats(contributions[(first_rank + position) % world_size], run); };
  const std::span<float> total = term(first_rank == rank_ ? 1 : 0);
  if (first_rank == rank_) owner_->Add(term(0), total);
  for (int i = first_rank == rank_ ? 2 : 1; i < world_size; ++i) owner_->Add(term(i), total);
  Apply({.step = sum.labels.step,
         .bucket = sum.labels.bucket,
         .range = run,
         .sum = total,
         .parameters = Parameters(run)});
}

void StarMachine::FinishAsTree(const StarSum& sum, ElementRange range, std::span<std::byte* const> contributions) {
  Apply({.step = sum.labels.step,
         .bucket = sum.labels.bucket,
         .range = range,
         .sum = AddAsTree({0, buckets_.world_size()}, range, contributions),
         .parameters = Parameters(range)});
}

// The sum of the contributions of `ranks`, which is where one of them was. As in FinishInChain, the own one is added to
// another one.
std::span<float> StarMachine::AddAsTree(LeafRange ranks, ElementRange range,
                                        std::span<std::byte* const> contributions) {
  if (ranks.size() == 1) return Floats(contributions[ranks.begin], range);
  const int middle = TreeMiddle(ranks);
  std::span<float> total = AddAsTree({ranks.begin, middle}, range, contributions);
  std::span<float> other = AddAsTree({middle, ranks.end}, range, contributions);
  if (total.data() == Floats(contributions[rank_], range).data()) std::swap(total, other);
  owner_->Add(other, total);
  return total;
}

void StarMachine::Copy(std::span<const std::byte> from, std::span<std::byte> to) {
  owner_->Copy(Floats(from), Floats(to.first(from.size())));
}

void StarMachine::Complete() {
  if (!is_on_gpu_) return;
  const auto start = std::chrono::steady_clock::now();
  owner_->Complete();
  if (!std::exchange(has_applied_, false)) return;
  optimizer_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void StarMachine::Apply(const ApplyArgs& args) {
  const auto start = std::chrono::steady_clock::now();
  owner_->Apply(args);
  optimizer_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  has_applied_ = is_on_gpu_;
}

}  // namespace starring
