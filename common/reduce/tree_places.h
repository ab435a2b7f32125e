// How an owner adds contributions as a tree (SumOrder::kTree in common/arithmetic/reduction_order.h) while they come
// one by one, in memory for a few of them.
//
// Words. A *node* is the sum of the contributions of the ranks [begin, end), if the tree has such a sum; a contribution
// is a node of one rank. A *place* has memory for one node. The owner's own contribution is a node without a place,
// where the training step has written it.
//
// Whenever both halves of a node are there, one is added to the other, and a place is free again. Owner `rank`
// gets contributions in the order rank + 1, rank + 2, ..., so at most about log2(N) places stay occupied.
// Float addition is commutative: it does not matter which half is added to which. The two halves of the whole tree are
// not added: the optimizer does that in its own pass.
//
// Cost: one addition for each contribution, as in a chain, and O(log N) for the bookkeeping of each.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_REDUCE_TREE_PLACES_H_
#define STARRING_COMMON_REDUCE_TREE_PLACES_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "common/arithmetic/reduction_order.h"

namespace starring {

class TreePlaces {
 public:
  // Instead of a place: the owner's own contribution.
  static constexpr int kOwn = -1;

  struct Options {
    int rank = 0;  // the owner's
    int world_size = 2;
  };
  // REQUIRES: world_size >= 2.
  explicit TreePlaces(const Options& options);

  // Begins another sum, with the places 0, 1, ..., place_count - 1, all of them free.
  void Begin(int place_count);

  // A free place, which is taken from now on. REQUIRES: there is one; see HeldMax.
  int Take();

  // The contribution of rank `from_rank` is in `place`, which was taken. Calls `add(from, into)` for every sum of two
  // nodes that follows: `into` is a place, `from` a place that is free afterwards, or kOwn.
  void Put(int from_rank, int place, absl::FunctionRef<void(int from, int into)> add);

  // The two halves of the tree: `sum` is a place, `last` a place or kOwn. REQUIRES: all contributions are there.
  struct Halves {
    int sum = 0;
    int last = kOwn;
  };
  Halves halves() const;

  // The most places that are taken after a Put, if contributions come in the order rank + 1, rank + 2, ... With n more
  // places, n contributions may be on their way.
  static int HeldMax(const Options& options);

 private:
  struct Node {
    LeafRange ranks;
    int place = kOwn;
  };
  LeafRange SiblingOf(LeafRange ranks) const;
  void Keep(const Node& node);

  const Options options_;
  // By the node's first rank; empty ranges: there is none. A node is kept until it is added to its sibling.
  std::vector<Node> nodes_;
  std::vector<int> free_;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_TREE_PLACES_H_
