#include <set>
#include <string>

#include "common/job/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

constexpr int kFirst = static_cast<int>(SumPurpose::kPixels);
constexpr int kLast = static_cast<int>(SumPurpose::kLeafValues);

// The numbers are in messages: another build reads them.
TEST(SumPurposeTest, NumbersStay) {
  EXPECT_EQ(kFirst, 1);
  EXPECT_EQ(static_cast<int>(SumPurpose::kStopVote), 2);
  EXPECT_EQ(static_cast<int>(SumPurpose::kRunningStatistics), 3);
  EXPECT_EQ(static_cast<int>(SumPurpose::kLosses), 4);
  EXPECT_EQ(static_cast<int>(SumPurpose::kEpoch), 5);
  EXPECT_EQ(static_cast<int>(SumPurpose::kWorkerUse), 6);
  EXPECT_EQ(static_cast<int>(SumPurpose::kDigest), 7);
  EXPECT_EQ(static_cast<int>(SumPurpose::kDigestVerdict), 8);
  EXPECT_EQ(static_cast<int>(SumPurpose::kCheckpoint), 9);
  EXPECT_EQ(static_cast<int>(SumPurpose::kBucketTrial), 10);
  EXPECT_EQ(static_cast<int>(SumPurpose::kEvaluation), 11);
  EXPECT_EQ(kLast, 12);
}

TEST(SumPurposeTest, EveryPurposeHasANameOfItsOwn) {
  std::set<std::string_view> names = {SumPurposeName(SumPurpose{0})};
  EXPECT_EQ(SumPurposeName(SumPurpose{kLast + 1}), SumPurposeName(SumPurpose{-1})) << "of another build";
  for (int purpose = kFirst; purpose <= kLast; ++purpose) names.insert(SumPurposeName(SumPurpose{purpose}));
  EXPECT_EQ(names.size(), static_cast<size_t>(kLast) + 1);
}

TEST(SumPurposeTest, EqualSumsAreTheSame) {
  EXPECT_TRUE(CheckSameSum(0, {SumPurpose::kEpoch, 3}, 1, {.purpose = SumPurpose::kEpoch, .value_count = 3}).ok());
}

TEST(SumPurposeTest, AnotherPurposeOrLengthIsRefusedWithBothRanks) {
  const absl::Status purpose = CheckSameSum(0, {SumPurpose::kStopVote, 1}, 7, {SumPurpose::kEpoch, 1});
  EXPECT_EQ(purpose.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(purpose.message()), HasSubstr("rank 0 adds 1 value for a vote to stop"));
  EXPECT_THAT(std::string(purpose.message()), HasSubstr("rank 7 adds 1 value for the end of an epoch"));
  const absl::Status length = CheckSameSum(2, {SumPurpose::kPixels, 3}, 5, {SumPurpose::kPixels, 7});
  EXPECT_EQ(length.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(length.message()), HasSubstr("rank 2 adds 3 values"));
  EXPECT_THAT(std::string(length.message()), HasSubstr("rank 5 adds 7 values"));
}

}  // namespace
}  // namespace starring
