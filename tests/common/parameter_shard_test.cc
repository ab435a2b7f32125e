#include "common/parameter_shard.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/allocation_count.h"
#include "tests/common/arithmetic/wild_numbers.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kCount = 48;  // elements; bucket 0 is [32, 48), bucket 1 [0, 32)

// Plain SGD with rate 1: parameters are minus the sum of all gradients so far.
ParameterShard::Options SgdOptions(int world_size) {
  return {.slices = {{{32, 48}}, {{0, 32}}},
          .element_count = kCount,
          .world_size = world_size,
          .optimizer = {},
          .schedule = {.base = 1}};
}

std::unique_ptr<ParameterShard> MakeShard(ParameterShard::Options options) {
  auto shard = ParameterShard::Create(std::move(options));
  EXPECT_TRUE(shard.ok()) << shard.status();
  return *std::move(shard);
}

absl::Status SetParameters(ParameterShard& shard, int bucket, const std::vector<float>& values) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(values));
  return shard.SetParameters(bucket, {&piece, 1});
}

std::unique_ptr<ParameterShard> MakeStarted(ParameterShard::Options options) {
  auto shard = MakeShard(std::move(options));
  for (int b = 0; b < shard->bucket_count(); ++b) {
    EXPECT_TRUE(SetParameters(*shard, b, std::vector<float>(shard->slice_element_count(b))).ok());
  }
  return shard;
}

Contribution Constant(int worker, int64_t step, int bucket, float value, int64_t count) {
  auto values = std::make_shared<std::vector<float>>(count, value);
  return {.worker = worker,
          .step = step,
          .bucket = bucket,
          .pieces = {std::as_bytes(std::span(*values))},
          .keeper = values};
}

ContributeResult MustContribute(ParameterShard& shard, Contribution contribution) {
  absl::StatusOr<ContributeResult> result = shard.Contribute(std::move(contribution));
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

std::string Refusal(absl::StatusCode code, const absl::Status& status) {
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

TEST(ParameterShardTest, TheLastContributionSeals) {
  auto shard = MakeStarted(SgdOptions(3));
  EXPECT_EQ(shard->Parameters(0)->step(), -1);
  ContributeResult result = MustContribute(*shard, Constant(2, 0, 0, 4, 16));
  EXPECT_EQ(result.fate, ContributionFate::kPending);
  EXPECT_EQ(result.sealed, nullptr);
  EXPECT_EQ(MustContribute(*shard, Constant(0, 0, 0, 1, 16)).fate, ContributionFate::kPending);
  result = MustContribute(*shard, Constant(1, 0, 0, 2, 16));
  EXPECT_EQ(result.fate, ContributionFate::kSealed);
  ASSERT_NE(result.sealed, nullptr);
  EXPECT_EQ(result.sealed->step(), 0);
  EXPECT_TRUE(SameBits(result.sealed->parameters(), std::vector<float>(16, -7)));
  EXPECT_EQ(shard->Parameters(0), result.sealed);
}

// A server that counts messages instead of senders adds a repeated one twice and seals without the third worker.
TEST(ParameterShardTest, ARepeatedContributionChangesNothing) {
  auto shard = MakeStarted(SgdOptions(2));
  MustContribute(*shard, Constant(0, 0, 0, 1, 16));
  const ContributeResult again = MustContribute(*shard, Constant(0, 0, 0, 1, 16));
  EXPECT_EQ(again.fate, ContributionFate::kDuplicate);
  EXPECT_EQ(again.sealed, nullptr);
  const ContributeResult sealed = MustContribute(*shard, Constant(1, 0, 0, 10, 16));
  EXPECT_EQ(sealed.fate, ContributionFate::kSealed);
  EXPECT_EQ(sealed.sealed->parameters()[0], -11);

  const ContributeResult late = MustContribute(*shard, Constant(0, 0, 0, 1, 16));
  EXPECT_EQ(late.fate, ContributionFate::kDuplicate);
  EXPECT_EQ(late.sealed, sealed.sealed);
}

TEST(ParameterShardTest, BucketsAdvanceByThemselves) {
  auto shard = MakeStarted(SgdOptions(1));
  for (int step = 0; step < 3; ++step) MustContribute(*shard, Constant(0, step, 1, 1, 32));
  EXPECT_EQ(shard->Parameters(1)->step(), 2);
  EXPECT_EQ(shard->Parameters(0)->step(), -1);
  EXPECT_EQ(shard->step(), 0);
  MustContribute(*shard, Constant(0, 0, 0, 1, 16));
  EXPECT_EQ(shard->step(), 1);
}

TEST(ParameterShardTest, OtherStepsAreRefusedByName) {
  auto shard = MakeStarted(SgdOptions(1));
  for (int step = 0; step < 2; ++step) MustContribute(*shard, Constant(0, step, 0, 1, 16));
  const auto refusal = [&](int64_t step) {
    return Refusal(absl::StatusCode::kFailedPrecondition, shard->Contribute(Constant(0, step, 0, 1, 16)).status());
  };
  EXPECT_EQ(refusal(0), "worker 0 contributes to step 0 of bucket 0, step 2 is expected");
  EXPECT_EQ(refusal(3), "worker 0 contributes to step 3 of bucket 0, step 2 is expected");
  EXPECT_THAT(refusal(-1), HasSubstr("step -1"));
  EXPECT_EQ(shard->Parameters(0)->parameters()[0], -2) << "an error changes nothing";
}

TEST(ParameterShardTest, AResumedShardHasNoStepBeforeItsFirst) {
  ParameterShard::Options options = SgdOptions(1);
  options.first_step = 7;
  auto shard = MakeStarted(std::move(options));
  EXPECT_EQ(shard->Parameters(0)->step(), 6);
  EXPECT_EQ(shard->step(), 7);
  Refusal(absl::StatusCode::kFailedPrecondition, shard->Contribute(Constant(0, 6, 0, 1, 16)).status());
  EXPECT_EQ(MustContribute(*shard, Constant(0, 7, 0, 1, 16)).sealed->step(), 7);
}

TEST(ParameterShardTest, WhatDoesNotFitIsRefusedWithBothValues) {
  auto shard = MakeStarted(SgdOptions(2));
  const auto refusal = [&](Contribution contribution) {
    return Refusal(absl::StatusCode::kInvalidArgument, shard->Contribute(std::move(contribution)).status());
  };
  EXPECT_THAT(refusal(Constant(0, 0, 2, 1, 16)), HasSubstr("worker 0: bucket 2 does not exist, there are 2"));
  EXPECT_THAT(refusal(Constant(0, 0, -1, 1, 16)), HasSubstr("bucket -1 does not exist"));
  EXPECT_THAT(refusal(Constant(2, 0, 0, 1, 16)), HasSubstr("worker 2 does not exist, the world size is 2"));
  EXPECT_THAT(refusal(Constant(-1, 0, 0, 1, 16)), HasSubstr("worker -1 does not exist"));
  EXPECT_THAT(refusal(Constant(1, 0, 0, 1, 15)),
              HasSubstr("worker 1 sends 60 bytes for bucket 0 at step 0, the slice has 64"));
  EXPECT_THAT(shard->Missing(0, 0).ranks, ElementsAre(0, 1)) << "an error changes nothing";
}

TEST(ParameterShardTest, ContributionsBeforeTheParametersAreRefused) {
  auto shard = MakeShard(SgdOptions(1));
  EXPECT_EQ(shard->Parameters(0), nullptr);
  EXPECT_THAT(Refusal(absl::StatusCode::kFailedPrecondition, shard->Contribute(Constant(0, 0, 0, 1, 16)).status()),
              HasSubstr("bucket 0 at step 0, which has no parameters yet"));
}

TEST(ParameterShardTest, ParametersMayBeSetAgainUntilTheFirstContribution) {
  auto shard = MakeShard(SgdOptions(2));
  ASSERT_TRUE(SetParameters(*shard, 0, std::vector<float>(16, 1)).ok());
  const std::shared_ptr<const SealedSlice> held = shard->Parameters(0);
  ASSERT_TRUE(SetParameters(*shard, 0, std::vector<float>(16, 2)).ok());
  EXPECT_EQ(held->parameters()[0], 1);
  EXPECT_EQ(shard->Parameters(0)->parameters()[0], 2);
  EXPECT_THAT(Refusal(absl::StatusCode::kInvalidArgument, SetParameters(*shard, 0, std::vector<float>(17))),
              HasSubstr("given 68 bytes of parameters, its slice has 64"));
  EXPECT_THAT(Refusal(absl::StatusCode::kInvalidArgument, SetParameters(*shard, 9, {})), HasSubstr("bucket 9"));
  MustContribute(*shard, Constant(0, 0, 0, 1, 16));
  EXPECT_THAT(Refusal(absl::StatusCode::kFailedPrecondition, SetParameters(*shard, 0, std::vector<float>(16))),
              HasSubstr("bucket 0 is given new parameters while step 0 is under way"));
}

TEST(ParameterShardTest, MissingNamesRanksAndSinceWhen) {
  absl::Time now = absl::UnixEpoch();
  ParameterShard::Options options = SgdOptions(3);
  options.now = [&now] { return now; };
  auto shard = MakeStarted(std::move(options));
  EXPECT_THAT(shard->Missing(0, 0).ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(shard->Missing(0, 0).first_arrival, absl::InfiniteFuture());
  now += absl::Seconds(5);
  MustContribute(*shard, Constant(1, 0, 0, 1, 16));
  now += absl::Seconds(5);
  MustContribute(*shard, Constant(0, 0, 0, 1, 16));
  EXPECT_THAT(shard->Missing(0, 0).ranks, ElementsAre(2));
  EXPECT_EQ(shard->Missing(0, 0).first_arrival, absl::UnixEpoch() + absl::Seconds(5));
  EXPECT_THAT(shard->Missing(1, 0).ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(shard->Missing(0, 1).ranks, ElementsAre(0, 1, 2)) << "the other bucket";
  MustContribute(*shard, Constant(2, 0, 0, 1, 16));
  EXPECT_THAT(shard->Missing(0, 0).ranks, IsEmpty());
  EXPECT_EQ(shard->Missing(1, 0).first_arrival, absl::InfiniteFuture());
}

TEST(ParameterShardTest, KeepersAreDroppedOnceTheSumIsMade) {
  auto shard = MakeStarted(SgdOptions(2));
  Contribution first = Constant(0, 0, 0, 1, 16);
  const std::weak_ptr<const void> keeper = first.keeper;
  MustContribute(*shard, std::move(first));
  EXPECT_FALSE(keeper.expired()) << "its bytes are still to be read";
  Contribution duplicate = Constant(0, 0, 0, 1, 16);
  const std::weak_ptr<const void> of_duplicate = duplicate.keeper;
  MustContribute(*shard, std::move(duplicate));
  EXPECT_TRUE(of_duplicate.expired());
  MustContribute(*shard, Constant(1, 0, 0, 1, 16));
  EXPECT_TRUE(keeper.expired());
}

// A server that reuses its reply buffer sends a slow worker the next step's numbers.
TEST(ParameterShardTest, ASliceThatIsHeldNeverChanges) {
  auto shard = MakeStarted(SgdOptions(1));
  std::vector<std::shared_ptr<const SealedSlice>> held = {shard->Parameters(0)};
  for (int step = 0; step < 8; ++step) {
    held.push_back(MustContribute(*shard, Constant(0, step, 0, 1, 16)).sealed);
    for (size_t i = 0; i < held.size(); ++i) {
      EXPECT_EQ(held[i]->step(), static_cast<int64_t>(i) - 1);
      EXPECT_TRUE(SameBits(held[i]->parameters(), std::vector<float>(16, static_cast<float>(-static_cast<int>(i)))))
          << i << " at " << step;
    }
  }
}

TEST(ParameterShardTest, BuffersOfReleasedSlicesAreUsedAgain) {
  auto shard = MakeStarted(SgdOptions(1));
  std::set<const float*> buffers;
  std::shared_ptr<const SealedSlice> previous;  // a reply that lasts as long as one more step
  for (int step = 0; step < 50; ++step) {
    previous = MustContribute(*shard, Constant(0, step, 0, 1, 16)).sealed;
    buffers.insert(previous->parameters().data());
  }
  EXPECT_LE(buffers.size(), 3u);
}

TEST(ParameterShardTest, ASteadyStepAllocatesNothing) {
  ParameterShard::Options options = SgdOptions(2);
  options.optimizer = {.momentum = 0.9};
  auto shard = MakeStarted(std::move(options));
  for (int step = 0; step < 10; ++step) {
    Contribution first = Constant(0, step, 0, 1, 16), second = Constant(1, step, 0, 1, 16);
    const int64_t before = AllocationCount();
    ASSERT_TRUE(shard->Contribute(std::move(first)).ok());
    ASSERT_TRUE(shard->Contribute(std::move(second)).ok());
    if (step < 3) continue;  // the pool fills
    EXPECT_EQ(AllocationCount(), before) << "at step " << step;
  }
}

TEST(ParameterShardTest, UpdatesInPlaceWithTheSameBits) {
  const auto shard = MakeStarted(SgdOptions(1));
  MustContribute(*shard, Constant(0, 0, 0, 0.5f, 16));
  const auto memory = std::make_shared<std::vector<float>>(16, -0.5f);
  shard->UpdateInPlace(0, *memory, memory);
  EXPECT_EQ(shard->Parameters(0)->step(), 0);
  EXPECT_EQ(shard->Parameters(0)->parameters().data(), memory->data());
  // A repeat of the step before is answered from there too.
  EXPECT_EQ(MustContribute(*shard, Constant(0, 0, 0, 9, 16)).sealed, shard->Parameters(0));
  for (int64_t step = 1; step < 4; ++step) {
    const ContributeResult result = MustContribute(*shard, Constant(0, step, 0, 1, 16));
    EXPECT_EQ(result.sealed->step(), step);
    EXPECT_EQ(*memory, std::vector<float>(16, -0.5f - static_cast<float>(step)));
  }
}

TEST(ParameterShardTest, AnEmptySliceTakesPartWithNoBytes) {
  ParameterShard::Options options = SgdOptions(2);
  options.slices = {{}, {{0, 16}}};
  auto shard = MakeStarted(std::move(options));
  EXPECT_EQ(shard->slice_element_count(0), 0);
  MustContribute(*shard, {.worker = 0, .step = 0, .bucket = 0});
  EXPECT_EQ(MustContribute(*shard, {.worker = 1, .step = 0, .bucket = 0}).sealed->parameters().size(), 0u);
  EXPECT_EQ(shard->step(), 0) << "bucket 0 has nothing to wait for";
}

TEST(ParameterShardTest, ApplyUpdatesPiecesInPlaceAndClosesTheStepWithTheLast) {
  ParameterShard::Options options = SgdOptions(2);
  options.slices = {{{32, 40}, {44, 48}}, {{0, 32}}};
  auto shard = MakeShard(std::move(options));
  std::vector<float> parameters(kCount, 10), sum(kCount, 1);
  const auto apply = [&](int64_t step, int bucket, int64_t begin, int64_t end) {
    shard->Apply({.step = step,
                  .bucket = bucket,
                  .range = {begin, end},
                  .sum = std::span(sum).subspan(begin, end - begin),
                  .parameters = std::span(parameters).subspan(begin, end - begin)});
  };
  apply(0, 1, 0, 32);
  apply(0, 0, 44, 48);
  EXPECT_EQ(shard->step(), 0);
  apply(0, 0, 35, 40);
  apply(0, 0, 32, 35);
  EXPECT_EQ(shard->step(), 1);
  for (int64_t e = 0; e < kCount; ++e) EXPECT_EQ(parameters[e], e < 40 || e >= 44 ? 9 : 10) << e;

  EXPECT_DEATH(apply(0, 0, 32, 35), "0 vs. 1\\) in bucket 0");
  EXPECT_DEATH(apply(1, 0, 36, 45), "\\[36, 45\\) is not owned in bucket 0");
  EXPECT_DEATH(apply(1, 0, 0, 4), "not owned in bucket 0");
  EXPECT_DEATH(
      {
        apply(1, 0, 32, 40);
        apply(1, 0, 32, 40);
      },
      "a piece of bucket 0 was applied twice");
}

TEST(ParameterShardTest, ApplyAddsTheLastContributionToTheSum) {
  for (const int64_t count : {1, 1023, 1024, 1025, 5000}) {
    ParameterShard::Options options = SgdOptions(2);
    options.slices = {{{0, count}}};
    options.element_count = count;
    auto shard = MakeShard(std::move(options));
    std::vector<float> parameters(count, 10), sum(count), last(count), expected(count);
    for (int64_t e = 0; e < count; ++e) {
      sum[e] = static_cast<float>(e % 7);
      last[e] = static_cast<float>(e % 5);
      expected[e] = 10 - (sum[e] + last[e]);
    }
    shard->Apply({.step = 0, .bucket = 0, .range = {0, count}, .sum = sum, .last = last, .parameters = parameters});
    EXPECT_EQ(parameters, expected) << count;
    EXPECT_EQ(shard->step(), 1);
  }
}

TEST(ParameterShardTest, StateGoesInAndOutByBucketAndWhole) {
  ParameterShard::Options options = SgdOptions(1);
  options.slices = {{{32, 40}, {44, 48}}, {{3, 20}}};
  options.optimizer = {.kind = OptimizerKind::kAdamW};
  auto shard = MakeStarted(std::move(options));
  const std::vector<float> mean = WildNumbers(kCount, 1), square = WildNumbers(kCount, 2);
  const std::vector<std::span<const float>> in = {mean, square};
  shard->CopyStateIn(in);

  std::vector<float> part(12);
  shard->CopyState(0, 1, part);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(part[i], square[i < 8 ? 32 + i : 36 + i]);

  const CutMessage message(part, {5}, 3);
  ASSERT_TRUE(shard->SetState(0, 0, message.pieces()).ok());
  std::vector<float> out_mean(kCount, -1), out_square(kCount, -1);
  const std::vector<std::span<float>> out = {out_mean, out_square};
  shard->CopyStateOut(out);
  for (int64_t e = 0; e < kCount; ++e) {
    const bool in_bucket0 = (32 <= e && e < 40) || (44 <= e && e < 48), in_bucket1 = 3 <= e && e < 20;
    EXPECT_EQ(out_square[e], in_bucket0 || in_bucket1 ? square[e] : -1) << e;
    EXPECT_EQ(out_mean[e], in_bucket0 ? square[e] : in_bucket1 ? mean[e] : -1) << e;
  }

  EXPECT_THAT(Refusal(absl::StatusCode::kInvalidArgument, shard->SetState(0, 2, message.pieces())),
              HasSubstr("state vector 2 does not exist, there are 2"));
  EXPECT_THAT(Refusal(absl::StatusCode::kInvalidArgument, shard->SetState(1, 0, message.pieces())),
              HasSubstr("given 48 bytes of optimizer state, its slice has 68"));
  shard->CopyStateIn({});
  shard->CopyState(0, 0, part);
  EXPECT_EQ(part, std::vector<float>(12));
  MustContribute(*shard, Constant(0, 0, 0, 1, 12));
  EXPECT_THAT(Refusal(absl::StatusCode::kFailedPrecondition, shard->SetState(0, 0, message.pieces())),
              HasSubstr("new optimizer state while step 1"));
}

TEST(ParameterShardTest, OptionsOutOfBoundsAreRefused) {
  const auto message = [](auto change) {
    ParameterShard::Options options = SgdOptions(2);
    change(options);
    return Refusal(absl::StatusCode::kInvalidArgument, ParameterShard::Create(std::move(options)).status());
  };
  EXPECT_THAT(message([](auto& o) { o.world_size = 0; }), HasSubstr("world_size is 0"));
  EXPECT_THAT(message([](auto& o) { o.world_size = kWorldSizeMax + 1; }), HasSubstr("world_size is 1025"));
  EXPECT_THAT(message([](auto& o) { o.slices.clear(); }), HasSubstr("bucket count is 0"));
  EXPECT_THAT(message([](auto& o) { o.slices.resize(kBucketCountMax + 1); }), HasSubstr("bucket count is 65537"));
  EXPECT_THAT(message([](auto& o) { o.element_count = kElementCountMax + 1; }),
              HasSubstr("element_count is 687194767"));
  EXPECT_THAT(message([](auto& o) { o.first_step = -1; }), HasSubstr("first_step is -1"));
  EXPECT_THAT(message([](auto& o) { o.optimizer.momentum = 2; }), HasSubstr("momentum is 2"));
  EXPECT_THAT(message([](auto& o) { o.schedule.base = -2; }), HasSubstr("learning rate is -2"));
  EXPECT_THAT(message([](auto& o) { o.slices[0][0].end = 49; }), HasSubstr("range 0 of bucket 0 is [32, 49)"));
  EXPECT_THAT(message([](auto& o) { o.slices[1] = {{4, 8}, {7, 9}}; }), HasSubstr("range 1 of bucket 1"));
  EXPECT_THAT(message([](auto& o) { o.slices[1][0].end = 33; }), HasSubstr("element 32 is owned in two buckets"));
}

// Slow readers may hold as many as they like; what is kept for the next steps is bounded.
TEST(ParameterShardTest, KeepsNoMoreBuffersThanAllowed) {
  const auto shard = MakeStarted(SgdOptions(1));
  std::vector<std::shared_ptr<const SealedSlice>> held;
  std::vector<std::weak_ptr<const SealedSlice>> seen;
  for (int step = 0; step < 4 * kSliceBuffersMax; ++step) {
    held.push_back(MustContribute(*shard, Constant(0, step, 0, 1, 16)).sealed);
    seen.push_back(held.back());
  }
  held.clear();
  EXPECT_EQ(std::count_if(seen.begin(), seen.end(), [](const auto& slice) { return !slice.expired(); }),
            kSliceBuffersMax);
}

}  // namespace
}  // namespace starring
