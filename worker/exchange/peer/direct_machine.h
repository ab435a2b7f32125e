// The co-located star: the ranks are the owners, every contribution goes straight to its owner, and the owner sends the
// new parameters straight to all ranks. MPI libraries call the reduce half "pairwise exchange" (Thakur, Rabenseifner
// and Gropp, "Optimization of collective communication operations in MPICH", 2005).
//
// Words: block_machine.h's, and these. A *contribution* is one rank's gradient of a chunk. An *answer* is a chunk's new
// parameters. Round i is about the distance k = i + 1:
//
//   reduce   Rank r sends its contribution to chunk r - k to that chunk's owner, and receives one from rank r + k.
//            Owner c therefore receives contributions c + 1, c + 2, ..., in the order of the chain that
//            reduction_order.h states, and adds each as it comes. The first is received where the sum will be. The
//            others are received in a few *places*, used in turn; a contribution that comes before its turn waits in
//            its place. With the order of a tree, an owner needs some places more, for sums that wait for their
//            sibling (tree_places.h).
//   apply    Rank c adds its own gradient, the last one, or the other half of the tree, and applies the optimizer in
//            the same pass over memory.
//   gather   Rank c sends the answer to rank c + k, and receives one from rank c - k.
//
// Every round is a permutation of the ranks: while they keep step, no rank receives from two at a time.
//
// Cost per group of L elements: every rank sends and receives 2 (N - 1) messages with 2 L (N - 1) / N elements together
// and adds L (N - 1) / N elements, as in a ring. But only two messages follow one after the other, where a ring has
// 2 (N - 1). An allgather in log2 N steps would need fewer messages, but each of its steps waits for another rank's.
//
// Window. A rank has at most `window` messages of a group on their way to others, and an owner takes at most as many
// from others: two whole messages' worth of bytes (limits.h), so that small ones all travel at once. The receive of an
// answer is posted with the contribution that it answers, so no answer comes to a rank that does not expect it. If the
// contribution is packed, the answer arrives in its memory, and the receive is posted when the contribution has been
// sent; few answers are earlier than that.
//
// Few owners. If the chunks of the vector's last block are very short, only some ranks own parts of it
// (common/reduce/owner_map.h), and only in those rounds messages travel that are to or from an owner. An owner has
// chunks whose sums begin with different ranks, so it adds when it has all contributions: each has a place of its own.
//
// There is no deadlock inside a group that all ranks have started. Take the smallest round with a contribution that has
// not been received. All contributions of the rounds before it have been sent, received and added, so its sender has
// posted it and its owner has a place for it. When all contributions have been received, all have been sent, so all
// receives of answers are posted, and the answers follow in the order of their rounds.
#ifndef STARRING_WORKER_EXCHANGE_PEER_DIRECT_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_DIRECT_MACHINE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/reduce/owner_map.h"
#include "common/reduce/tree_places.h"
#include "worker/exchange/peer/block_machine.h"

namespace starring {

class DirectMachine final : public BlockMachine {
 public:
  // All pointers outlive the machine.
  DirectMachine(const Options& options, SumOrder order);

 private:
  // How far a group in flight is.
  struct Progress {
    int window = 0;
    int place_count = 0;
    int64_t place_elements = 0;  // from one place to the next
    int sends_posted = 0;        // contributions by round, then answers by round
    int sends_done = 0;
    int receives_posted = 0;         // of contributions, by round
    int added_count = 0;             // contributions that are in the sum: those of the first rounds
    std::vector<bool> arrived;       // contributions, by round
    std::vector<int> place_of;       // by round; in a chain the sum is in the place of round 0
    std::optional<TreePlaces> tree;  // with the order of a tree only
  };

  void StartGroup(Group& group) override;
  void Advance(Group& group, Operation operation) override;
  int PeerOf(Operation operation) const override;

  void PostSends(Group& group, Progress& progress);
  void PostReceives(Group& group, Progress& progress);
  void OnContribution(Group& group, Progress& progress, int round);
  static int64_t ScratchElements(const Options& options, SumOrder order);
  // Posts the receive of the answer to this rank's contribution of `round`.
  void PostAnswer(Group& group, int round);
  void TakeContribution(Group& group, Progress& progress, int round);
  Parts PartsOf(const Group& group, const Progress& progress) const;
  std::span<float> Place(const Group& group, const Progress& progress, int place) const;

  // The block with few owners.
  void StartFew(Group& group, Progress& progress);
  void OnFewContribution(Group& group, Progress& progress);
  void ApplyFewAsTree(const Group& group, Progress& progress);
  void ApplyFewInChain(const Group& group, const Progress& progress, int chunk);
  std::span<float> FewPlace(const Group& group, const Progress& progress, int place) const;
  // The slice of the vector's last block that `rank` owns.
  ElementRange LastSliceOf(int rank) const { return owners_.SliceOfBlock(buckets().last_block(), rank); }
  // The slice of that block to which this rank contributes in `round`: the one of the rank at the other end.
  ElementRange OwnerSlice(int round) const;

  const OwnerMap owners_;
  const int held_max_;              // places of sums that wait for others
  std::vector<Progress> progress_;  // by slot
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_DIRECT_MACHINE_H_
