#include "worker/exchange/peer/share_machine.h"

#include <algorithm>

#include "common/arithmetic/reduction_order.h"
#include "common/arithmetic/sum_in_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/job/layout.h"

namespace starring {
namespace {

OwnerMap OwnersOf(const BucketMap& buckets) { return OwnerMap::JoinedChunks(buckets.world_size()); }

}  // namespace

// Places begin at cache lines.
int64_t ShareMachine::PlaceElements(const Options& options) {
  const int world_size = options.transport->world_size();
  const int64_t longest = std::max(
      ChunkElements(world_size),
      OwnersOf(*options.buckets).SliceOfBlock(options.buckets->last_block(), options.transport->rank()).size());
  return (longest + Layout::kAlignmentElements - 1) / Layout::kAlignmentElements * Layout::kAlignmentElements;
}

// A place for every contribution, of which this rank's own take none, and one for the sum.
int64_t ShareMachine::ScratchElements(const Options& options, int micro_batches) {
  return PlaceElements(options) *
         std::ssize(ContributorsOf(DealLeavesEvenly(micro_batches, options.transport->world_size())));
}

ShareMachine::ShareMachine(const Options& options, int micro_batches)
    : BlockMachine(options,
                   {.scratch_elements = ScratchElements(options, micro_batches),
                    .last_block_is_apart = OwnersOf(*options.buckets).OwnersOfBlock(options.buckets->last_block()) <
                                           options.transport->world_size(),
                    .one_block_groups = true}),
      owners_(OwnersOf(buckets())),
      contributors_(ContributorsOf(DealLeavesEvenly(micro_batches, world_size()))),
      place_elements_(PlaceElements(options)),
      contributors_of_(world_size()),
      missing_(slot_count(), 0),
      terms_(contributors_.size()) {
  for (size_t i = 0; i < contributors_.size(); ++i) {
    const Contributor& one = contributors_[i];
    leaves_.push_back(one.leaves.size());
    std::vector<size_t>& of_rank = contributors_of_[one.rank];
    of_rank.resize(std::max<size_t>(of_rank.size(), one.node + 1));
    of_rank[one.node] = i;
  }
  node_gradients_.resize(contributors_of_[rank()].size() - 1);
  for (std::vector<const float*>& of_node : node_gradients_) of_node.resize(buckets().bucket_count());
}

void ShareMachine::SubmitNode(int64_t /*step*/, int bucket, int node, std::span<const float> gradient) {
  CHECK_EQ(std::ssize(gradient), buckets().bucket(bucket).size());
  CHECK_LT(static_cast<size_t>(node), node_gradients_.size());
  node_gradients_[node][bucket] = gradient.data();
}

int ShareMachine::PeerOf(Operation operation) const {
  const bool peer_owns_the_chunk = operation.phase == Phase::kReduceSend || operation.phase == Phase::kGatherReceive;
  return peer_owns_the_chunk ? Left(operation.round + 1) : Right(operation.round + 1);
}

ElementRange ShareMachine::OwnedOf(const Group& group, int rank) const {
  return owners_.SliceOfBlock(group.range, rank);
}

std::span<const float> ShareMachine::GradientOf(const Group& group, size_t node, ElementRange range) const {
  if (node == node_gradients_.size()) return Gradient(group, range);
  const float* const bucket_begin = node_gradients_[node][group.bucket];
  return {bucket_begin + (range.begin - buckets().bucket(group.bucket).begin), static_cast<size_t>(range.size())};
}

std::span<float> ShareMachine::Place(const Group& group, size_t contributor) const {
  return group.scratch.subspan(contributor * place_elements_, OwnedOf(group, rank()).size());
}

void ShareMachine::StartGroup(Group& group) {
  const bool owns = OwnedOf(group, rank()).size() > 0;
  const auto nodes_of = [&](int rank) { return static_cast<int>(contributors_of_[rank].size()); };
  // Each message is an operation, and not each rank is an owner: what StartGroups has counted is another number.
  missing_[group.slot] = group.before_ready = group.before_free = 0;
  for (int round = 0; round < round_count(); ++round) {
    const Operation contribution = {.phase = Phase::kReduceSend, .round = round};
    if (OwnedOf(group, PeerOf(contribution)).size() > 0) group.before_ready += nodes_of(rank()) + 1;
    if (owns) missing_[group.slot] += nodes_of(PeerOf({.phase = Phase::kReduceReceive, .round = round}));
  }
  group.before_ready += missing_[group.slot];
  group.before_free = group.before_ready + (owns ? round_count() : 0);
  // Receives come first: a message for which no receive is posted would be copied by MPI, or would wait.
  for (int round = 0; owns && round < round_count(); ++round) {
    const Operation contribution = {.phase = Phase::kReduceReceive, .round = round};
    for (const size_t contributor : contributors_of_[PeerOf(contribution)]) {
      Receive(group, contribution, Place(group, contributor));
    }
  }
  for (int round = 0; round < round_count(); ++round) {
    const Operation contribution = {.phase = Phase::kReduceSend, .round = round};
    const ElementRange slice = OwnedOf(group, PeerOf(contribution));
    if (slice.size() == 0) continue;
    Receive(group, {.phase = Phase::kGatherReceive, .round = round}, Parameters(slice));
    for (size_t node = 0; node < contributors_of_[rank()].size(); ++node) {
      Send(group, contribution, GradientOf(group, node, slice));
    }
  }
}

void ShareMachine::Advance(Group& group, Operation operation) {
  if (operation.phase == Phase::kReduceReceive && --missing_[group.slot] == 0) AddAndApply(group);
}

void ShareMachine::AddAndApply(Group& group) {
  const ElementRange owned = OwnedOf(group, rank());
  for (size_t i = 0; i < contributors_.size(); ++i) {
    const Contributor& one = contributors_[i];
    const std::span<const float> term =
        one.rank == rank() ? GradientOf(group, one.node, owned) : std::span<const float>(Place(group, i));
    terms_[i] = std::as_bytes(term).data();
  }
  // The places of this rank's own contributions are free.
  const std::span<float> sum = Place(group, contributors_of_[rank()][0]);
  SumAsTree(terms_, sum, BestInstructionSet(), leaves_);
  ApplySum(group, owned, sum);
  for (int round = 0; round < round_count(); ++round) {
    Send(group, {.phase = Phase::kGatherSend, .round = round}, Parameters(owned));
  }
}

}  // namespace starring
