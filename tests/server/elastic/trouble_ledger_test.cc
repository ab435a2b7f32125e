#include "server/elastic/trouble_ledger.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using Kind = ErrorOrigin::Kind;
using Verdict = TroubleLedger::Verdict;

Generation MakeGeneration(int64_t number, std::vector<uint64_t> workers, std::vector<int> owners,
                          int64_t first_step = 0) {
  return {.number = number, .first_step = first_step, .workers = std::move(workers), .leaf_owners = std::move(owners)};
}

ErrorOrigin NotFinite(int64_t step) { return {.kind = Kind::kNotFinite, .number = step}; }
ErrorOrigin OtherLoss(int64_t step) { return {.kind = Kind::kOtherLoss, .number = step}; }

bool AllReach(uint64_t /*worker*/) { return true; }

std::vector<uint64_t> Blamed(const TroubleLedger& ledger, const std::function<bool(uint64_t)>& reaches = AllReach) {
  std::vector<uint64_t> workers;
  for (const TroubleLedger::Culprit& culprit : ledger.Judge(reaches)) workers.push_back(culprit.worker);
  return workers;
}

class ClaimTest : public testing::Test {
 protected:
  ClaimTest() { ledger_.Begin(MakeGeneration(1, {11, 12}, {0, 0, 1, 1})); }
  TroubleLedger ledger_;
};

TEST_F(ClaimTest, AnotherWorkerThatClaimsTheSameOfTheSameLeavesConfirmsIt) {
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(7)), Verdict::kCheck);
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(7)), Verdict::kKnown) << "reports are repeated";
  EXPECT_THAT(ledger_.avoided(), ElementsAre(11, 11, 12, 12));
  EXPECT_EQ(ledger_.LatestBegin(), 7);
  ledger_.Begin(MakeGeneration(2, {12, 11}, {0, 0, 1, 1}));
  EXPECT_EQ(ledger_.OnClaim(12, NotFinite(7)), Verdict::kEnds);
}

// In the same generation another worker has other leaves. But if both claim the same, each is checked by the other.
TEST_F(ClaimTest, TwoWorkersThatClaimTheSameAtOnceAreChecked) {
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(7)), Verdict::kCheck);
  EXPECT_EQ(ledger_.OnClaim(12, NotFinite(7)), Verdict::kCheck);
  ledger_.Begin(MakeGeneration(2, {12, 11}, {0, 0, 1, 1}));
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(7)), Verdict::kEnds);
}

TEST_F(ClaimTest, AWorkerThatClaimsAgainWhatNoOtherDoesLeaves) {
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(7)), Verdict::kCheck);
  ledger_.Begin(MakeGeneration(2, {12, 11}, {0, 0, 1, 1}));
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(5)), Verdict::kLeaves);
  // The one that has its leaves now may still confirm it.
  ledger_.Begin(MakeGeneration(3, {12, 13}, {0, 0, 1, 1}));
  EXPECT_EQ(ledger_.OnClaim(12, NotFinite(7)), Verdict::kEnds);
}

TEST_F(ClaimTest, AnotherStepIsAnotherClaim) {
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(7)), Verdict::kCheck);
  ledger_.Begin(MakeGeneration(2, {12, 11}, {0, 0, 1, 1}));
  EXPECT_EQ(ledger_.OnClaim(12, NotFinite(6)), Verdict::kCheck);
  EXPECT_EQ(ledger_.LatestBegin(), 6);
  EXPECT_THAT(ledger_.avoided(), ElementsAre(12, 12, 11, 11));
}

TEST_F(ClaimTest, AStepThatOthersMakeRefutesIt) {
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(7)), Verdict::kCheck);
  EXPECT_THAT(ledger_.TakeRefuted(100), IsEmpty()) << "nothing was computed again yet";
  ledger_.Begin(MakeGeneration(2, {12, 11}, {0, 0, 1, 1}));
  EXPECT_THAT(ledger_.TakeRefuted(7), IsEmpty()) << "up to the step, without it";
  EXPECT_THAT(ledger_.TakeRefuted(8), ElementsAre(11));
  EXPECT_FALSE(ledger_.has_claims());
  EXPECT_THAT(ledger_.avoided(), IsEmpty());
}

TEST_F(ClaimTest, AnotherLossNamesNobodyAndEndsTheRunIfItComesBack) {
  EXPECT_EQ(ledger_.OnClaim(11, OtherLoss(7)), Verdict::kCheck);
  ledger_.Begin(MakeGeneration(2, {12, 11}, {0, 0, 1, 1}));
  EXPECT_EQ(ledger_.OnClaim(11, OtherLoss(7)), Verdict::kEnds) << "all workers know the loss of a step";
}

TEST_F(ClaimTest, AnotherLossThatDoesNotComeBackIsForgotten) {
  EXPECT_EQ(ledger_.OnClaim(11, OtherLoss(7)), Verdict::kCheck);
  ledger_.Begin(MakeGeneration(2, {12, 11}, {0, 0, 1, 1}));
  EXPECT_THAT(ledger_.TakeRefuted(7 + TroubleLedger::kLossStepsLate), IsEmpty());
  EXPECT_TRUE(ledger_.has_claims()) << "a worker may not have compared it yet";
  EXPECT_THAT(ledger_.TakeRefuted(8 + TroubleLedger::kLossStepsLate), IsEmpty());
  EXPECT_FALSE(ledger_.has_claims());
}

TEST_F(ClaimTest, AWorkerAloneIsBelieved) {
  ledger_.Begin(MakeGeneration(2, {11}, {0, 0, 0, 0}));
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(7)), Verdict::kEnds);
}

TEST_F(ClaimTest, AGenerationThatBeginsLaterHasNothingToCheck) {
  EXPECT_EQ(ledger_.OnClaim(11, NotFinite(7)), Verdict::kCheck);
  ledger_.Begin(MakeGeneration(2, {12, 11}, {0, 0, 1, 1}, /*first_step=*/8));
  EXPECT_FALSE(ledger_.has_claims());
}

class JudgeTest : public testing::Test {
 protected:
  JudgeTest() {
    ledger_.Begin(MakeGeneration(1, {11, 12}, {0, 0, 1, 1}));
    ledger_.Begin(MakeGeneration(2, {11, 12, 13}, {0, 0, 1, 2}));
  }
  TroubleLedger ledger_;
};

TEST_F(JudgeTest, NobodyIsBlamedForWhatComesFromOthers) {
  EXPECT_THAT(Blamed(ledger_), IsEmpty());
  ledger_.OnTrouble(11, {.kind = Kind::kExchange});
  EXPECT_THAT(Blamed(ledger_), IsEmpty());
}

TEST_F(JudgeTest, WhoNamesAServerThatOthersReachIsBlamed) {
  EXPECT_FALSE(ledger_.names_server());
  ledger_.OnTrouble(12, {.kind = Kind::kServer, .number = 1});
  EXPECT_TRUE(ledger_.names_server());
  EXPECT_THAT(Blamed(ledger_), ElementsAre(12));
  EXPECT_THAT(ledger_.Judge(AllReach).front().why, HasSubstr("shard 1"));
  EXPECT_THAT(Blamed(ledger_, [](uint64_t worker) { return worker == 12; }), IsEmpty()) << "no other one reaches it";
  ledger_.OnShardLost(1);
  EXPECT_THAT(Blamed(ledger_), IsEmpty()) << "the server is gone";
}

TEST_F(JudgeTest, AServerThatAllNameIsTheCauseItself) {
  for (const uint64_t worker : {11, 12, 13}) ledger_.OnTrouble(worker, {.kind = Kind::kServer, .number = 0});
  EXPECT_THAT(Blamed(ledger_), IsEmpty());
}

TEST_F(JudgeTest, WhoHasNotJoinedIsBlamedAndNotWhoHasWaited) {
  ledger_.OnShard(1, {2}, {});
  EXPECT_THAT(Blamed(ledger_), IsEmpty()) << "the generation may have been cut before it could";
  ledger_.OnTrouble(11, {.kind = Kind::kMissingWorkers, .number = 1});
  EXPECT_THAT(Blamed(ledger_), ElementsAre(13));
  ledger_.OnShard(1, {}, {});
  EXPECT_THAT(Blamed(ledger_), IsEmpty()) << "it has joined";
}

TEST_F(JudgeTest, WhoWasWaitedForIsBlamed) {
  ledger_.OnShard(0, {3, -1}, {1, 3, -1});  // the ranks are 0 to 2
  EXPECT_THAT(Blamed(ledger_), ElementsAre(12));
  ledger_.OnShard(1, {}, {0, 1, 2});
  EXPECT_THAT(Blamed(ledger_), ElementsAre(12)) << "that all are late is no worker's";
}

TEST_F(JudgeTest, TroubleOfNoOtherProcessIsItsOwn) {
  ledger_.OnTrouble(13, {});
  EXPECT_THAT(Blamed(ledger_), ElementsAre(13));
}

TEST_F(JudgeTest, WhoHasJustComeGoesIfThereIsNoRoom) {
  ledger_.OnTrouble(11, {.kind = Kind::kNoRoom, .number = 0});
  EXPECT_THAT(Blamed(ledger_), ElementsAre(13));
}

TEST_F(JudgeTest, IfAllAreToBlameNobodyIs) {
  ledger_.OnTrouble(11, {});
  ledger_.OnTrouble(12, {.kind = Kind::kServer, .number = 0});
  ledger_.OnShard(1, {}, {2});
  EXPECT_THAT(Blamed(ledger_), IsEmpty());
}

TEST_F(JudgeTest, AGenerationKnowsNothingOfTheOneBefore) {
  ledger_.OnTrouble(13, {});
  ledger_.Begin(MakeGeneration(3, {11, 12, 13}, {0, 0, 1, 2}));
  EXPECT_THAT(Blamed(ledger_), IsEmpty());
}

TEST(PauseTest, DoublesUntilTheWorkerHasComeFurther) {
  TroubleLedger ledger;
  TroubleLedger::Time now{std::chrono::hours(1)};
  EXPECT_FALSE(ledger.IsLeftOut(11, now));
  for (const int expected : {5, 10, 20, 40, 80, 160, 320, 640, 640}) {
    EXPECT_EQ(ledger.LeaveOut(11, now), seconds(expected));
    EXPECT_TRUE(ledger.IsLeftOut(11, now + seconds(expected) - std::chrono::milliseconds(1)));
    now += seconds(expected);
    EXPECT_FALSE(ledger.IsLeftOut(11, now));
  }
  EXPECT_EQ(ledger.LeaveOut(12, now), seconds(5));
  ledger.Forgive({11});
  EXPECT_EQ(ledger.LeaveOut(11, now), seconds(5));
}

}  // namespace
}  // namespace starring
