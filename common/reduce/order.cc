#include "common/reduce/order.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace starring {

namespace {

int HeldMax(const Order::Options& options) {
  // A chain occupies the place of its sum.
  if (options.plan != Order::Plan::kTree) return 1;
  return TreePlaces::HeldMax({.rank = options.rank, .world_size = options.rank_count});
}

}  // namespace

Order::Order(Options options)
    : options_(std::move(options)),
      held_max_(HeldMax(options_)),
      is_here_(options_.arrival_count),
      place_of_(options_.arrival_count) {
  CHECK_GE(options_.arrival_count, 1);
  CHECK(options_.plan == Plan::kAll || options_.arrival_count == options_.rank_count - 1) << options_.arrival_count;
  if (options_.plan == Plan::kTree) {
    tree_.emplace(TreePlaces::Options{.rank = options_.rank, .world_size = options_.rank_count});
  }
}

int Order::PlaceCount(int window) const { return std::min(held_max_ + window, options_.arrival_count); }

void Order::Begin(Plan plan, int window) {
  CHECK_GE(window, 1);
  CHECK(plan == Plan::kAll || plan == options_.plan);
  plan_ = plan;
  window_ = window;
  place_count_ = PlaceCount(window);
  taken_count_ = added_count_ = 0;
  is_here_.assign(is_here_.size(), false);
  if (plan == Plan::kTree) tree_->Begin(place_count_);
}

std::optional<int> Order::TakeNext() {
  if (taken_count_ == options_.arrival_count) return std::nullopt;
  const int arrival = taken_count_;
  int place = 0;
  switch (plan_) {
    case Plan::kAll:
      place = options_.places[arrival];
      break;
    case Plan::kChain: {
      // Every place except the sum's is free again once its contribution is added.
      const int others = place_count_ - 1;
      // The first contribution becomes the sum, so it takes none of the other places.
      if (arrival >= std::max(1, added_count_) + others) return std::nullopt;
      place = arrival == 0 ? 0 : 1 + (arrival - 1) % others;
      break;
    }
    case Plan::kTree:
      // PlaceCount has a place for each of the `window_` arrivals that are taken and not added.
      if (arrival >= added_count_ + window_) return std::nullopt;
      place = tree_->Take();
      break;
  }
  ++taken_count_;
  place_of_[arrival] = place;
  return place;
}

void Order::Put(int arrival, absl::FunctionRef<void(int from, int into)> add) {
  CHECK(arrival < taken_count_ && !is_here_[arrival]) << arrival;
  is_here_[arrival] = true;
  if (plan_ == Plan::kAll) {
    ++added_count_;
    return;
  }
  // Also those that came before their turn.
  while (added_count_ < options_.arrival_count && is_here_[added_count_]) Add(added_count_++, add);
}

void Order::Add(int arrival, absl::FunctionRef<void(int from, int into)> add) {
  const int place = place_of_[arrival];
  if (plan_ == Plan::kTree) return tree_->Put((options_.rank + 1 + arrival) % options_.rank_count, place, add);
  // The first arrival is already where the sum will be.
  if (arrival > 0) add(place, 0);
}

Order::Parts Order::parts() const {
  CHECK(plan_ != Plan::kAll && is_complete());
  // The chain begins with rank + 1, so the owner's own contribution is its last summand.
  if (plan_ == Plan::kChain) return {.part = 0, .other = kOwn};
  const TreePlaces::Halves halves = tree_->halves();
  return {.part = halves.sum, .other = halves.last};
}

}  // namespace starring
