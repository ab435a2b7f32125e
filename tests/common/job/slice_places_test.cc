#include "common/job/slice_places.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

const std::vector<std::vector<ElementRange>> kSlices = {
    {{96, 101}, {101, 101}, {101, 104}, {120, 125}}, {}, {{0, 40}, {64, 96}}};

TEST(SlicePlacesTest, SlicesFollowEachOtherAtAlignedPlaces) {
  const SlicePlaces places(kSlices);
  ASSERT_EQ(places.bucket_count(), 3);
  EXPECT_EQ(places.ranges(0), (std::vector<ElementRange>{{96, 104}, {120, 125}})) << "adjacent ranges are joined";
  EXPECT_EQ(places.slice(0), (ElementRange{0, 13}));
  EXPECT_EQ(places.slice(1).size(), 0);
  EXPECT_EQ(places.slice(2).begin % Layout::kAlignmentElements, 0);
  EXPECT_GE(places.slice(2).begin, 13);
  EXPECT_EQ(places.slice(2).size(), 72);
  EXPECT_GE(places.element_count(), places.slice(2).end);
}

TEST(SlicePlacesTest, APieceIsInOneRange) {
  const SlicePlaces places(kSlices);
  EXPECT_EQ(places.OffsetOf(0, {99, 103}), 3);
  EXPECT_EQ(places.OffsetOf(0, {120, 125}), 8);
  EXPECT_EQ(places.OffsetOf(2, {64, 65}), 40);
  for (const ElementRange& piece : {ElementRange{95, 97}, {103, 105}, {100, 121}, {124, 126}, {99, 99}, {0, 1}}) {
    EXPECT_EQ(places.OffsetOf(0, piece), -1) << piece.begin << " to " << piece.end;
  }
  EXPECT_EQ(places.OffsetOf(1, {96, 97}), -1);
}

}  // namespace
}  // namespace starring
