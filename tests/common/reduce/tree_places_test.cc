#include "common/reduce/tree_places.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// A sum as it is written, with the smaller of two addends first, because a + b = b + a: "((0+1)+2)".
std::string Sum(const std::string& a, const std::string& b) {
  return absl::StrCat("(", a < b ? a : b, "+", a < b ? b : a, ")");
}

// The tree's definition (common/arithmetic/reduction_order.h).
std::string TreeOf(int begin, int end) {
  if (end - begin == 1) return absl::StrCat(begin);
  int left = 1;
  while (2 * left < end - begin) left *= 2;
  return Sum(TreeOf(begin, begin + left), TreeOf(begin + left, end));
}

// An owner whose contributions are texts.
class Owner {
 public:
  explicit Owner(const TreePlaces::Options& options)
      : options_(options), tree_(options), values_(static_cast<size_t>(options.world_size)) {}

  void Begin(int place_count) { tree_.Begin(place_count); }
  int Take() { return tree_.Take(); }
  void Put(int rank, int place) {
    values_[place] = absl::StrCat(rank);
    tree_.Put(rank, place, [this](int from, int into) {
      EXPECT_NE(into, TreePlaces::kOwn);
      EXPECT_NE(from, into);
      values_[into] = Sum(ValueOf(from), values_[into]);
      if (from != TreePlaces::kOwn) values_[from] = "free";
    });
  }
  std::string Whole() const {
    const TreePlaces::Halves halves = tree_.halves();
    EXPECT_NE(halves.sum, TreePlaces::kOwn);
    return Sum(ValueOf(halves.sum), ValueOf(halves.last));
  }

 private:
  std::string ValueOf(int place) const {
    return place == TreePlaces::kOwn ? absl::StrCat(options_.rank) : values_[place];
  }

  const TreePlaces::Options options_;
  TreePlaces tree_;
  std::vector<std::string> values_;  // by place
};

// As an owner of a star uses it: some contributions are on their way while one is added.
TEST(TreePlaces, AddAsTheTreeIsDefinedInFewPlaces) {
  for (const int world_size : {2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 64, 100}) {
    const std::string expected = TreeOf(0, world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      for (const int on_their_way : {1, 2, 5}) {
        SCOPED_TRACE(testing::Message() << "owner " << rank << " of " << world_size << ", " << on_their_way);
        const TreePlaces::Options options = {.rank = rank, .world_size = world_size};
        Owner owner(options);
        owner.Begin(std::min(world_size - 1, TreePlaces::HeldMax(options) + on_their_way));
        std::vector<int> taken;
        for (int added = 0; added < world_size - 1; ++added) {
          while (std::ssize(taken) < std::min(world_size - 1, added + on_their_way)) taken.push_back(owner.Take());
          owner.Put((rank + added + 1) % world_size, taken[added]);
        }
        ASSERT_EQ(owner.Whole(), expected);
      }
    }
  }
}

TEST(TreePlaces, AddInAnyOrderOfArrival) {
  const TreePlaces::Options options = {.rank = 4, .world_size = 7};
  Owner owner(options);
  owner.Begin(6);
  for (const int rank : {6, 0, 5, 3, 1, 2}) owner.Put(rank, owner.Take());
  EXPECT_EQ(owner.Whole(), TreeOf(0, 7));
  owner.Begin(6);  // and again
  for (const int rank : {2, 1, 3, 5, 0, 6}) owner.Put(rank, owner.Take());
  EXPECT_EQ(owner.Whole(), TreeOf(0, 7));
}

TEST(TreePlaces, HoldAboutALogarithmOfPlaces) {
  EXPECT_EQ(TreePlaces::HeldMax({.rank = 0, .world_size = 2}), 1);
  EXPECT_EQ(TreePlaces::HeldMax({.rank = 1, .world_size = 2}), 1);
  EXPECT_EQ(TreePlaces::HeldMax({.rank = 0, .world_size = 8}), 3);
  for (const int world_size : {3, 8, 31, 64, 1024}) {
    for (int rank = 0; rank < world_size; rank += 1 + world_size / 16) {
      EXPECT_LE(TreePlaces::HeldMax({.rank = rank, .world_size = world_size}),
                2 * std::bit_width(static_cast<unsigned>(world_size - 1)))
          << "rank " << rank << " of " << world_size;
    }
  }
}

TEST(TreePlacesDeathTest, NoPlaceAndNoSumBeforeTheLastContribution) {
  TreePlaces tree({.rank = 0, .world_size = 3});
  tree.Begin(1);
  const int place = tree.Take();
  EXPECT_DEATH(tree.Take(), "free_");
  tree.Put(1, place, [](int, int) {});
  EXPECT_DEATH(tree.halves(), "contributions are missing");
}

}  // namespace
}  // namespace starring
