#include "worker/exchange/clipping_owner.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "bench/exchange_job.h"
#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::Each;

constexpr int64_t kElements = 3008;  // more than one pass of the update, and the last one is short

JobSpec Job(double clip_norm) {
  JobSpec job = MakeExchangeJob({.element_count = kElements, .optimizer = {.momentum = 0.5, .clip_norm = clip_norm}});
  job.schedule.base = 1;
  return job;
}

std::unique_ptr<ClippingOwner> Create(const JobSpec& job, std::span<float> sums = {}) {
  auto owner = ClippingOwner::Create(job, sums);
  CHECK_OK(owner);
  return *std::move(owner);
}

TEST(ClippingOwnerTest, AJobThatDoesNotClipNeedsNone) { EXPECT_EQ(Create(Job(0)), nullptr); }

TEST(ClippingOwnerTest, AddsAndChangesNoParameter) {
  const auto owner = Create(Job(1));
  ASSERT_EQ(owner->sums().size(), kElements);
  const std::vector<float> sum(64, 3), last(64, 4);
  const std::span<float> out = owner->sums().subspan(128, 64);
  owner->Apply({.step = 0, .bucket = 0, .range = {128, 192}, .sum = sum, .last = last, .parameters = out});
  EXPECT_THAT(out, Each(7));
  owner->Apply({.step = 0, .bucket = 0, .range = {128, 192}, .sum = sum, .last = {}, .parameters = out});
  EXPECT_THAT(out, Each(3));
}

// 3,008 elements of 2: the square of the length is 12,032. Half of that length halves every element.
TEST(ClippingOwnerTest, ScalesTheWholeGradientOnceARound) {
  const double length = std::sqrt(4.0 * kElements);
  std::vector<float> sums(kElements + 5, 2);  // shared memory may be longer
  const auto owner = Create(Job((length + 1e-6) / 2), sums);
  std::vector<float> parameters(kElements, 10);
  EXPECT_FALSE(owner->HasUpdated(0));
  owner->Update(0, parameters);
  EXPECT_TRUE(owner->HasUpdated(0));
  EXPECT_THAT(parameters, Each(9));
  owner->Update(0, parameters);
  EXPECT_THAT(parameters, Each(9));
  EXPECT_THAT(sums, Each(2)) << "other ranks read them";
  owner->Update(1, parameters);
  EXPECT_THAT(parameters, Each(7.5f)) << "1 and half of the velocity before";

  std::vector<float> state(kElements);
  const std::span<float> whole[] = {state};
  owner->CopyStateOut(whole);
  EXPECT_THAT(state, Each(1.5f));
}

TEST(ClippingOwnerTest, LeavesAShortGradientAlone) {
  const auto owner = Create(Job(1e30));
  std::ranges::fill(owner->sums(), 0.1f);
  std::vector<float> parameters(kElements);
  owner->Update(0, parameters);
  EXPECT_THAT(parameters, Each(-0.1f));
}

TEST(ClippingOwnerTest, ARoundThatWasLeftOutIsABug) {
  const auto owner = Create(Job(1));
  std::vector<float> parameters(kElements);
  EXPECT_DEATH(owner->Update(1, parameters), "1");
}

}  // namespace
}  // namespace starring
