// The co-located star of a job with micro-batches. The messages travel as in direct_machine.h, but each rank
// contributes the nodes of its share (common/job/leaf_shares.h).
//
// Words: direct_machine.h's. A group is one block. In a group, every rank sends each owner a contribution for each node
// of its share, in the order of the share, and gets one answer. The contributions leave when the last node is
// submitted: a share has more than one node only where the ranks do not divide the leaves evenly. An owner has a place
// for every contribution of the others; when all are there, it adds them, and its own, as the tree of the leaves says.
//
// Cost per block of L elements and rank with q nodes: q (N - 1) + N - 1 messages sent, (q + 1) L (N - 1) / N elements.
//
// There is no deadlock: all operations of a group but the answers are posted when it starts, and the answers when all
// contributions are there.
#ifndef STARRING_WORKER_EXCHANGE_PEER_SHARE_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_SHARE_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/job/leaf_shares.h"
#include "common/reduce/owner_map.h"
#include "worker/exchange/peer/block_machine.h"

namespace starring {

class ShareMachine final : public BlockMachine {
 public:
  // All pointers outlive the machine. REQUIRES: micro_batches is at least the number of ranks; host memory.
  ShareMachine(const Options& options, int micro_batches);

  void SubmitNode(int64_t step, int bucket, int node, std::span<const float> gradient) override;

 private:
  void StartGroup(Group& group) override;
  void Advance(Group& group, Operation operation) override;
  int PeerOf(Operation operation) const override;

  static int64_t PlaceElements(const Options& options);
  static int64_t ScratchElements(const Options& options, int micro_batches);
  // The range of the group that `rank` owns.
  ElementRange OwnedOf(const Group& group, int rank) const;
  std::span<const float> GradientOf(const Group& group, size_t node, ElementRange range) const;
  // The memory of a contribution of another rank.
  std::span<float> Place(const Group& group, size_t contributor) const;
  void AddAndApply(Group& group);

  const OwnerMap owners_;
  const std::vector<Contributor> contributors_;
  const int64_t place_elements_;
  std::vector<int> leaves_;                                // by contributor
  std::vector<std::vector<size_t>> contributors_of_;       // by rank, then node
  std::vector<std::vector<const float*>> node_gradients_;  // by node but the last of this rank's share, then bucket
  std::vector<int> missing_;                               // by slot: contributions that have not come
  std::vector<const std::byte*> terms_;                    // of a sum, by contributor
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_SHARE_MACHINE_H_
