#include "common/reduce/tree_places.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace starring {

TreePlaces::TreePlaces(const Options& options) : options_(options), nodes_(options.world_size) {
  CHECK_GE(options_.world_size, 2);
  CHECK(0 <= options_.rank && options_.rank < options_.world_size) << options_.rank;
}

void TreePlaces::Begin(int place_count) {
  std::fill(nodes_.begin(), nodes_.end(), Node());
  free_.clear();
  // The last one is taken first, so that a sum of few contributions uses the first places only.
  for (int place = place_count - 1; place >= 0; --place) free_.push_back(place);
  Keep({.ranks = {options_.rank, options_.rank + 1}, .place = kOwn});
}

int TreePlaces::Take() {
  CHECK(!free_.empty());
  const int place = free_.back();
  free_.pop_back();
  return place;
}

void TreePlaces::Put(int from_rank, int place, absl::FunctionRef<void(int from, int into)> add) {
  Node node = {.ranks = {from_rank, from_rank + 1}, .place = place};
  while (true) {
    const LeafRange sibling = SiblingOf(node.ranks);
    const Node kept = nodes_[sibling.begin];
    const LeafRange both = {std::min(node.ranks.begin, sibling.begin), std::max(node.ranks.end, sibling.end)};
    // The halves of the whole tree stay apart: the optimizer adds them in its own pass.
    if (kept.ranks != sibling || both == LeafRange{0, options_.world_size}) return Keep(node);
    // A sum needs a place, and the owner's own contribution has none.
    int from = node.place, into = kept.place;
    if (into == kOwn) std::swap(from, into);
    add(from, into);
    if (from != kOwn) free_.push_back(from);
    nodes_[sibling.begin] = Node();
    node = {.ranks = both, .place = into};
  }
}

TreePlaces::Halves TreePlaces::halves() const {
  const int middle = TreeMiddle({0, options_.world_size});
  const Node &left = nodes_[0], &right = nodes_[middle];
  CHECK(left.ranks.end == middle && right.ranks.end == options_.world_size) << "contributions are missing";
  if (left.place == kOwn) return {.sum = right.place, .last = kOwn};
  return {.sum = left.place, .last = right.place};
}

// Goes down from the root, which has no sibling, to the parent of the node that sums `ranks`.
LeafRange TreePlaces::SiblingOf(LeafRange ranks) const {
  LeafRange parent = {0, options_.world_size};
  while (true) {
    const int middle = TreeMiddle(parent);
    const LeafRange left = {parent.begin, middle}, right = {middle, parent.end};
    if (ranks == left) return right;
    if (ranks == right) return left;
    parent = ranks.end <= middle ? left : right;
  }
}

void TreePlaces::Keep(const Node& node) { nodes_[node.ranks.begin] = node; }

int TreePlaces::HeldMax(const Options& options) {
  // A rehearsal with a place for every contribution.
  TreePlaces places(options);
  const int count = options.world_size - 1;
  places.Begin(count);
  int held = 0;
  for (int distance = 1; distance <= count; ++distance) {
    const int place = places.Take();
    places.Put((options.rank + distance) % options.world_size, place, [](int, int) {});
    held = std::max(held, count - static_cast<int>(places.free_.size()));
  }
  return held;
}

}  // namespace starring
