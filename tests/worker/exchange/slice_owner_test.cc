#include "worker/exchange/slice_owner.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

// Owns elements 16 to 31 and 48 to 63 of one bucket of 64.
HostSliceOwner MakeOwner() {
  OwnedSlices::Options options{.element_count = 64, .optimizer = {.momentum = 0.5f}};
  options.slices = {{{16, 32}, {48, 64}}};
  options.schedule.base = 1.0;
  return HostSliceOwner(OwnedSlices::Create(std::move(options)).value());
}

TEST(HostSliceOwner, AddsItsOwnGradient) {
  HostSliceOwner owner = MakeOwner();
  std::vector<float> sum = {1, 2, 3};
  owner.Add(std::vector<float>{10, 20, 30}, sum);
  EXPECT_THAT(sum, ElementsAre(11, 22, 33));
  EXPECT_TRUE(owner.status().ok());
}

TEST(HostSliceOwner, AppliesTheOptimizerAndKeepsItsState) {
  HostSliceOwner owner = MakeOwner();
  const std::vector<float> sum(16, 1.0f), last(16, 2.0f);
  std::vector<float> first(16, 0.0f), second(16, 10.0f);
  owner.Apply({.step = 0, .bucket = 0, .range = {16, 32}, .sum = sum, .last = last, .parameters = first});
  owner.Apply({.step = 0, .bucket = 0, .range = {48, 64}, .sum = sum, .parameters = second});
  EXPECT_THAT(first, Each(-3.0f));
  EXPECT_THAT(second, Each(9.0f));
  std::vector<float> state(32);
  owner.CopyState(0, 0, state);  // ascending: both ranges, one after the other
  EXPECT_THAT(std::vector<float>(state.begin(), state.begin() + 16), Each(3.0f));
  EXPECT_THAT(std::vector<float>(state.begin() + 16, state.end()), Each(1.0f));

  std::vector<float> whole(64, -1.0f);
  const std::span<float> spans[] = {whole};
  owner.CopyStateOut(spans);
  EXPECT_EQ(whole[15], -1.0f);  // not owned
  EXPECT_EQ(whole[16], 3.0f);
  EXPECT_EQ(whole[63], 1.0f);
  HostSliceOwner other = MakeOwner();
  const std::span<const float> given[] = {whole};
  other.CopyStateIn(given);
  std::vector<float> copied(32);
  other.CopyState(0, 0, copied);
  EXPECT_EQ(copied, state);
}

TEST(HostSliceOwner, AllocatesAndHasNoParametersOfItsOwn) {
  HostSliceOwner owner = MakeOwner();
  const std::span<float> a = owner.Allocate(100), b = owner.Allocate(50);
  ASSERT_EQ(a.size(), 100u);
  ASSERT_EQ(b.size(), 50u);
  std::fill(b.begin(), b.end(), 1.0f);
  EXPECT_THAT(a, Each(0.0f));
  EXPECT_THAT(owner.own_parameters(), IsEmpty());
}

}  // namespace
}  // namespace starring
