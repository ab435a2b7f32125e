#include "server/shard/collective_wait.h"

#include <string>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pointee;

const CollectiveWait::Time kStart{seconds(100)};

TEST(CollectiveWaitTest, CountsWhoCameNotHowOften) {
  CollectiveWait wait(2);
  EXPECT_TRUE(wait.Add({.rank = 1, .lane = 0}, kStart));
  EXPECT_FALSE(wait.Add({.rank = 1, .lane = 0}, kStart));
  EXPECT_FALSE(wait.complete());
  EXPECT_TRUE(wait.Has(1));
  EXPECT_FALSE(wait.Has(0));
  EXPECT_TRUE(wait.Add({.rank = 0, .lane = 0}, kStart));
  EXPECT_TRUE(wait.complete());
}

TEST(CollectiveWaitTest, AnswersWhereARequestCameFromLast) {
  CollectiveWait wait(2);
  wait.Add({.rank = 1, .lane = 0}, kStart);
  wait.Add({.rank = 1, .lane = 3}, kStart);
  wait.Add({.rank = 0, .lane = 2}, kStart);
  EXPECT_THAT(wait.Waiting(), ElementsAre(LaneId{0, 2}, LaneId{1, 3}));
  EXPECT_THAT(wait.Take(), ElementsAre(LaneId{0, 2}, LaneId{1, 3}));
  EXPECT_TRUE(wait.empty());
  EXPECT_THAT(wait.Take(), ElementsAre());
}

TEST(CollectiveWaitTest, IsAsOldAsItsFirstPart) {
  CollectiveWait wait(3);
  wait.Add({.rank = 1, .lane = 0}, kStart);
  wait.Add({.rank = 0, .lane = 0}, kStart + seconds(5));
  EXPECT_EQ(wait.since(), kStart);
  (void)wait.Take();
  wait.Add({.rank = 0, .lane = 0}, kStart + seconds(9));
  EXPECT_EQ(wait.since(), kStart + seconds(9));
}

TEST(CollectiveWaitTest, NamesWhoIsMissing) {
  CollectiveWait wait(4);
  wait.Add({.rank = 2, .lane = 0}, kStart);
  EXPECT_EQ(wait.DescribeMissing(), "ranks 0, 1, 3 have");
  wait.Add({.rank = 0, .lane = 0}, kStart);
  wait.Add({.rank = 3, .lane = 0}, kStart);
  EXPECT_EQ(wait.DescribeMissing(), "rank 1 has");
}

TEST(CollectiveWaitTest, NamesAFewOfManyWhoAreMissing) {
  CollectiveWait wait(1000);
  wait.Add({.rank = 0, .lane = 0}, kStart);
  EXPECT_THAT(wait.DescribeMissing(), AllOf(HasSubstr("ranks 1, 2, 3,"), HasSubstr(", 16 and 983 more have")));
}

// Takes a rank's part of sum `number`. The message is freed after the call.
absl::StatusOr<std::vector<LaneId>> Take(CollectiveSum& sum, LaneId from, int64_t number,
                                         const std::vector<double>& values, SumPurpose purpose = SumPurpose::kLosses) {
  ReceivedMessage message;
  message.fields.set_step(number);
  message.fields.set_sum_purpose(static_cast<int>(purpose));
  if (!values.empty()) message.payload = {std::as_bytes(std::span(values))};
  message.payload_bytes = static_cast<int64_t>(values.size() * sizeof(double));
  return sum.Take(from, message, kStart);
}

std::vector<LaneId> MustTake(CollectiveSum& sum, LaneId from, int64_t number, const std::vector<double>& values) {
  auto lanes = Take(sum, from, number, values);
  EXPECT_TRUE(lanes.ok()) << lanes.status();
  return lanes.ok() ? *lanes : std::vector<LaneId>();
}

TEST(CollectiveSumTest, AddsInRankOrderAndAnswersEverybody) {
  CollectiveSum sum(3);
  // In rank order this is 1: the large values cancel first.
  EXPECT_THAT(MustTake(sum, {2, 0}, 0, {1.0, 3}), IsEmpty());
  EXPECT_THAT(MustTake(sum, {1, 0}, 0, {-1e300, 2}), IsEmpty());
  EXPECT_EQ(sum.last(), nullptr);
  EXPECT_EQ(sum.number(), 0);
  EXPECT_EQ(sum.wait().DescribeMissing(), "rank 0 has");
  EXPECT_THAT(MustTake(sum, {0, 0}, 0, {1e300, 1}), ElementsAre(LaneId{0, 0}, LaneId{1, 0}, LaneId{2, 0}));
  EXPECT_THAT(sum.last(), Pointee(ElementsAre(1.0, 6)));
  EXPECT_EQ(sum.number(), 1);
  EXPECT_TRUE(sum.wait().empty());
}

TEST(CollectiveSumTest, ARepeatCountsOnceAndIsAnsweredWhereItCameFrom) {
  CollectiveSum sum(2);
  EXPECT_THAT(MustTake(sum, {1, 0}, 0, {2}), IsEmpty());
  EXPECT_THAT(MustTake(sum, {1, 1}, 0, {2}), IsEmpty());
  EXPECT_THAT(MustTake(sum, {0, 0}, 0, {1}), ElementsAre(LaneId{0, 0}, LaneId{1, 1}));
  const auto answer = sum.last();
  // Rank 1's answer was lost while rank 0 was in the next sum already.
  EXPECT_THAT(MustTake(sum, {0, 0}, 1, {5}), IsEmpty());
  EXPECT_THAT(MustTake(sum, {1, 2}, 0, {2}), ElementsAre(LaneId{1, 2}));
  EXPECT_THAT(sum.last(), Pointee(ElementsAre(3)));
  MustTake(sum, {1, 2}, 1, {6});
  EXPECT_THAT(sum.last(), Pointee(ElementsAre(11)));
  EXPECT_THAT(answer, Pointee(ElementsAre(3))) << "an answer on its way keeps its values";
  EXPECT_THAT(MustTake(sum, {1, 2}, 0, {2}), IsEmpty()) << "all have had that answer";
}

TEST(CollectiveSumTest, ASumOfNothingIsABarrier) {
  CollectiveSum sum(2);
  EXPECT_THAT(MustTake(sum, {0, 0}, 0, {}), IsEmpty());
  EXPECT_THAT(MustTake(sum, {1, 0}, 0, {}), ElementsAre(LaneId{0, 0}, LaneId{1, 0}));
  EXPECT_THAT(sum.last(), Pointee(IsEmpty()));
}

TEST(CollectiveSumTest, RefusesWhatNoCorrectWorkerSends) {
  CollectiveSum sum(2);
  EXPECT_THAT(MustTake(sum, {0, 0}, -1, {1}), IsEmpty()) << "there is no sum before the first";
  EXPECT_EQ(Take(sum, {0, 0}, 1, {1}).status().message(), "sum 1, expected sum 0");
  const absl::Status longer = Take(sum, {0, 0}, 0, std::vector<double>(kSumValuesMax + 1)).status();
  EXPECT_EQ(longer.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(longer.message()), HasSubstr("up to 4096"));
  ReceivedMessage odd;
  odd.payload_bytes = 9;
  EXPECT_EQ(sum.Take({0, 0}, odd, kStart).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(sum.wait().empty()) << "what was refused is no part";
  MustTake(sum, {0, 0}, 0, std::vector<double>(kSumValuesMax));
  const absl::Status other = Take(sum, {1, 0}, 0, std::vector<double>(kSumValuesMax), SumPurpose::kEpoch).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Take(sum, {1, 0}, 0, {1}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace starring
