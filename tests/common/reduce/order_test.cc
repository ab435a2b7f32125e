#include "common/reduce/order.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// Takes all arrivals in a random order, as far as the plan lets them come, and writes the sum as text: "((1+2)+0)".
std::string SumOf(Order& order, int rank, int rank_count, uint64_t seed, int* on_the_way_max) {
  std::mt19937_64 random(seed);
  std::vector<std::string> places(rank_count);
  std::vector<int> coming;
  const auto value_of = [&](int place) { return place == Order::kOwn ? absl::StrCat(rank) : places[place]; };
  std::vector<int> place_of(rank_count);
  while (!order.is_complete()) {
    while (const std::optional<int> place = order.TakeNext()) {
      const int arrival = order.taken_count() - 1;
      place_of[arrival] = *place;
      coming.push_back(arrival);
    }
    *on_the_way_max = std::max(*on_the_way_max, static_cast<int>(coming.size()));
    const size_t next = random() % coming.size();
    const int arrival = coming[next];
    coming.erase(coming.begin() + static_cast<std::ptrdiff_t>(next));
    places[place_of[arrival]] = absl::StrCat((rank + 1 + arrival) % rank_count);
    order.Put(arrival, [&](int from, int into) {
      places[into] = absl::StrCat("(", places[into], "+", value_of(from), ")");
      if (from != Order::kOwn) places[from] = "free";
    });
  }
  const Order::Parts parts = order.parts();
  return absl::StrCat("(", value_of(parts.part), "+", value_of(parts.other), ")");
}

TEST(OrderTest, AChainIsAddedInItsOrderWhateverArrivesFirst) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const int window : {1, 2, 9}) {
      Order order({.arrival_count = 4, .plan = Order::Plan::kChain, .rank = 3, .rank_count = 5, .places = {}});
      // Pieces follow each other.
      for (int piece = 0; piece < 2; ++piece) {
        order.Begin(Order::Plan::kChain, window);
        int on_the_way = 0;
        EXPECT_EQ(SumOf(order, 3, 5, seed, &on_the_way), "((((4+0)+1)+2)+3)");
        EXPECT_LE(on_the_way, window + 1);
        EXPECT_LE(on_the_way, order.PlaceCount(window));
      }
    }
  }
}

TEST(OrderTest, ATreeOfThreeHasItsOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Order order({.arrival_count = 2, .plan = Order::Plan::kTree, .rank = 1, .rank_count = 3, .places = {}});
    order.Begin(Order::Plan::kTree, 1);
    int on_the_way = 0;
    EXPECT_EQ(SumOf(order, 1, 3, seed, &on_the_way), "((0+1)+2)");
    EXPECT_EQ(on_the_way, 1);
  }
}

TEST(OrderTest, AllHavePlacesOfTheirOwn) {
  Order order({.arrival_count = 3, .plan = Order::Plan::kAll, .places = {2, 0, 1}});
  order.Begin(Order::Plan::kAll, 1);
  EXPECT_EQ(order.TakeNext(), 2);
  EXPECT_EQ(order.TakeNext(), 0);
  EXPECT_EQ(order.TakeNext(), 1);
  EXPECT_EQ(order.TakeNext(), std::nullopt);
  const auto no_sum = [](int, int) { FAIL() << "nothing is added before the last one is there"; };
  for (const int arrival : {1, 2, 0}) {
    EXPECT_FALSE(order.is_complete());
    order.Put(arrival, no_sum);
  }
  EXPECT_TRUE(order.is_complete());
}

// The memory of an owner, in places of one message, with two messages on the way: it grows with log2 of the ranks.
TEST(OrderTest, PlacesGrowSlowlyWithTheRanks) {
  const auto places = [](Order::Plan plan, int rank_count) {
    return Order({.arrival_count = rank_count - 1, .plan = plan, .rank = 0, .rank_count = rank_count, .places = {}})
        .PlaceCount(2);
  };
  EXPECT_EQ(places(Order::Plan::kChain, 2), 1);
  for (const int rank_count : {8, 64, 1024}) EXPECT_EQ(places(Order::Plan::kChain, rank_count), 3);
  EXPECT_LE(places(Order::Plan::kTree, 8), 5);
  EXPECT_LE(places(Order::Plan::kTree, 64), 8);
  EXPECT_LE(places(Order::Plan::kTree, 1024), 12);
}

}  // namespace
}  // namespace starring
