// The plan by which an owner takes and adds the contributions to one piece (star_pieces.h): which contribution may come
// next, into which place of its memory, and what is added to what then.
//
// Words. *Arrivals* are the contributions that come from other processes, counted from 0 in the order in which the
// owner takes them. A *place* has memory for one contribution or one partial sum. There are three plans.
//
//   chain   Each rank has one contribution. Owner `rank` takes them in the order rank + 1, rank + 2, ..., which is the
//           order of the chain that reduction_order.h states, and adds each as it comes. The first is taken where the
//           sum will be, the others in a few places in turn.
//   tree    The same arrivals. Both halves of a node are added as soon as they are there (tree_places.h).
//   all     Every contribution has a place of its own, and nothing is added before the last one is there. For orders in
//           which the elements of a piece begin with different ranks, for nodes of micro-batches, for elements that are
//           wider in sums, for servers, and for owners on a GPU, which then wait for it once.
//
// A contribution that comes before its turn waits in its place. The owner's own contribution has no place.
//
// Thread safety: none; one thread at a time.
#ifndef STARRING_COMMON_REDUCE_ORDER_H_
#define STARRING_COMMON_REDUCE_ORDER_H_

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/reduce/tree_places.h"

namespace starring {

class Order {
 public:
  enum class Plan { kChain, kTree, kAll };
  // The place of the owner's own contribution.
  static constexpr int kOwn = TreePlaces::kOwn;

  struct Options {
    int arrival_count = 0;
    Plan plan = Plan::kAll;  // of the pieces that do not need kAll
    // With a chain or a tree: the owner, and the number of ranks, arrival_count + 1.
    int rank = 0;
    int rank_count = 1;
    // With kAll: the place of each arrival.
    std::vector<int> places;
  };
  explicit Order(Options options);

  // How many places a chain or a tree uses if `window` contributions may be on their way to them.
  int PlaceCount(int window) const;
  // The places that are still occupied after adding all arrivals: the sum's, or those of partial sums that wait.
  int held_max() const { return held_max_; }

  // The first call for a piece. `plan` is the one of the options, or kAll. REQUIRES: window >= 1.
  void Begin(Plan plan, int window);

  // The place of the next arrival, which may come from now on; none if it must wait for others to be added.
  std::optional<int> TakeNext();
  // How many have been taken.
  int taken_count() const { return taken_count_; }

  // The contribution is in its place. Calls `add(from, into)` for every sum of two that follows: `into` is a place,
  // `from` a place that is free afterwards, or kOwn.
  void Put(int arrival, absl::FunctionRef<void(int from, int into)> add);

  // Nothing is missing, and nothing is left to add but the last step.
  bool is_complete() const { return added_count_ == options_.arrival_count; }
  // With a chain or a tree, the last two summands. The last step adds them, in its own pass over memory.
  struct Parts {
    int part = 0;      // a place
    int other = kOwn;  // a place or kOwn
  };
  Parts parts() const;

 private:
  void Add(int arrival, absl::FunctionRef<void(int from, int into)> add);

  const Options options_;
  const int held_max_;
  std::optional<TreePlaces> tree_;
  Plan plan_ = Plan::kAll;
  int window_ = 1;
  int place_count_ = 0;
  int taken_count_ = 0;
  int added_count_ = 0;        // arrivals that are in sums: the first ones
  std::vector<bool> is_here_;  // by arrival
  std::vector<int> place_of_;  // by arrival
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_ORDER_H_
