#include "common/job/owned_slices.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/arithmetic/wild_numbers.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kCount = 48;  // elements; bucket 0 owns [32, 40) and [44, 48), bucket 1 [0, 32)

// Plain SGD with rate 1: parameters are minus the sum of all gradients so far.
OwnedSlices::Options SgdOptions() {
  return {.slices = {{{32, 40}, {44, 48}}, {{0, 32}}}, .element_count = kCount, .schedule = {.base = 1}};
}

TEST(OwnedSlicesTest, AppliesPiecesInPlaceAndClosesTheStepWithTheLast) {
  OwnedSlices owned = OwnedSlices::Create(SgdOptions()).value();
  std::vector<float> parameters(kCount, 10), sum(kCount, 1);
  const auto apply = [&](int64_t step, int bucket, int64_t begin, int64_t end) {
    owned.Apply({.step = step,
                 .bucket = bucket,
                 .range = {begin, end},
                 .sum = std::span(sum).subspan(begin, end - begin),
                 .parameters = std::span(parameters).subspan(begin, end - begin)});
  };
  apply(0, 1, 0, 32);
  apply(0, 0, 44, 48);
  EXPECT_DEATH(apply(1, 0, 32, 40), "1 vs. 0\\) in bucket 0") << "a piece is missing";
  apply(0, 0, 35, 40);
  apply(0, 0, 32, 35);
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

TEST(OwnedSlicesTest, ApplyAddsTheLastContributionToTheSum) {
  for (const int64_t count : {1, 1023, 1024, 1025, 5000}) {
    OwnedSlices owned =
        OwnedSlices::Create({.slices = {{{0, count}}}, .element_count = count, .schedule = {.base = 1}}).value();
    std::vector<float> parameters(count, 10), sum(count), last(count), expected(count);
    for (int64_t e = 0; e < count; ++e) {
      sum[e] = static_cast<float>(e % 7);
      last[e] = static_cast<float>(e % 5);
      expected[e] = 10 - (sum[e] + last[e]);
    }
    owned.Apply({.step = 0, .bucket = 0, .range = {0, count}, .sum = sum, .last = last, .parameters = parameters});
    EXPECT_EQ(parameters, expected) << count;
    owned.Apply({.step = 1, .bucket = 0, .range = {0, count}, .sum = sum, .parameters = parameters});
  }
}

TEST(OwnedSlicesTest, UpdatesFromOneArrayToAnother) {
  OwnedSlices owned = OwnedSlices::Create(SgdOptions()).value();
  const std::vector<float> gradient(12, 1), before(12, 5);
  std::vector<float> after(12);
  for (const int64_t offset : {7, 0}) {  // pieces need not follow the ranges, nor come in order
    const size_t count = offset == 7 ? 5 : 7;
    owned.Update({.step = 0,
                  .bucket = 0,
                  .offset = offset,
                  .gradient = std::span(gradient).first(count),
                  .parameters_in = std::span(before).subspan(offset, count),
                  .parameters_out = std::span(after).subspan(offset, count)});
  }
  EXPECT_EQ(after, std::vector<float>(12, 4));
  EXPECT_EQ(before, std::vector<float>(12, 5));
  const auto update = [&](int64_t offset) {
    owned.Update({.step = 1,
                  .bucket = 0,
                  .offset = offset,
                  .gradient = std::span(gradient).first(4),
                  .parameters_in = std::span(before).first(4),
                  .parameters_out = std::span(after).first(4)});
  };
  EXPECT_DEATH(update(9), "9 in bucket 0");
  EXPECT_DEATH(update(-1), "-1 in bucket 0");
}

TEST(OwnedSlicesTest, AdjacentRangesAreJoined) {
  OwnedSlices::Options options = SgdOptions();
  options.slices = {{{0, 8}, {8, 8}, {8, 20}, {24, 32}}, {}};
  const OwnedSlices owned = OwnedSlices::Create(std::move(options)).value();
  EXPECT_EQ(owned.ranges(0).size(), 2u);
  EXPECT_EQ(owned.slice_element_count(0), 28);
  EXPECT_EQ(owned.slice_element_count(1), 0);
  EXPECT_DEATH(owned.ranges(2), "bucket 2 of 2");
}

TEST(OwnedSlicesTest, StateGoesInAndOutByBucketAndWhole) {
  OwnedSlices::Options options = SgdOptions();
  options.slices = {{{32, 40}, {44, 48}}, {{3, 20}}};
  options.optimizer = {.kind = OptimizerKind::kAdamW};
  OwnedSlices owned = OwnedSlices::Create(std::move(options)).value();
  const std::vector<float> mean = WildNumbers(kCount, 1), square = WildNumbers(kCount, 2);
  const std::vector<std::span<const float>> in = {mean, square};
  owned.CopyStateIn(in);

  const std::span<float> part = owned.state(0, 1);
  ASSERT_EQ(part.size(), 12u);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(part[i], square[i < 8 ? 32 + i : 36 + i]);

  std::ranges::copy(part, owned.state(0, 0).begin());
  std::vector<float> out_mean(kCount, -1), out_square(kCount, -1);
  const std::vector<std::span<float>> out = {out_mean, out_square};
  owned.CopyStateOut(out);
  for (int64_t e = 0; e < kCount; ++e) {
    const bool in_bucket0 = (32 <= e && e < 40) || (44 <= e && e < 48), in_bucket1 = 3 <= e && e < 20;
    EXPECT_EQ(out_square[e], in_bucket0 || in_bucket1 ? square[e] : -1) << e;
    EXPECT_EQ(out_mean[e], in_bucket0 ? square[e] : in_bucket1 ? mean[e] : -1) << e;
  }
  EXPECT_DEATH(owned.state(0, 2), "2");
}

TEST(OwnedSlicesTest, OptionsOutOfBoundsAreRefused) {
  const auto message = [](auto change) {
    OwnedSlices::Options options = SgdOptions();
    change(options);
    const absl::Status status = OwnedSlices::Create(std::move(options)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto& o) { o.slices.clear(); }), HasSubstr("bucket count is 0"));
  EXPECT_THAT(message([](auto& o) { o.slices.resize(kBucketCountMax + 1); }), HasSubstr("bucket count is 65537"));
  EXPECT_THAT(message([](auto& o) { o.element_count = kElementCountMax + 1; }),
              HasSubstr("element_count is 687194767"));
  EXPECT_THAT(message([](auto& o) { o.first_step = -1; }), HasSubstr("first_step is -1"));
  EXPECT_THAT(message([](auto& o) { o.optimizer.momentum = 2; }), HasSubstr("momentum is 2"));
  EXPECT_THAT(message([](auto& o) { o.schedule.base = -2; }), HasSubstr("learning rate is -2"));
  EXPECT_THAT(message([](auto& o) { o.slices[0][1].end = 49; }), HasSubstr("range 1 of bucket 0 is [44, 49)"));
  EXPECT_THAT(message([](auto& o) { o.slices[1] = {{4, 8}, {7, 9}}; }), HasSubstr("range 1 of bucket 1"));
  EXPECT_THAT(message([](auto& o) { o.slices[1][0].end = 33; }), HasSubstr("element 32 is owned in two buckets"));
}

}  // namespace
}  // namespace starring
