#include "common/watch/roll_call.h"

#include <numeric>
#include <string>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr StallTimes kTimes{.report_after = seconds(4)};
const RollCall::Time kStart{seconds(1000)};

WorkState In(WorkPhase phase, int64_t step, milliseconds age = seconds(10)) {
  return {.phase = phase, .step = step, .age = age};
}

std::string Sentence(const RollCall& roll, RollCall::Time now) {
  const auto root = roll.FindRoot(now);
  return root.has_value() ? root->sentence : "none";
}

TEST(StallTimesTest, AskingLeavesTimeForTheAnswers) {
  EXPECT_EQ(kTimes.ask_after(), seconds(2));
  EXPECT_EQ(kTimes.patience(), seconds(1));
  EXPECT_EQ(StallTimes{.report_after = milliseconds(200)}.patience(), milliseconds(300));
  EXPECT_FALSE(StallTimes{}.enabled());
}

TEST(NameRanksTest, NamesAFewOfMany) {
  EXPECT_EQ(NameRanks({3}), "rank 3");
  EXPECT_EQ(NameRanks({0, 2}), "ranks 0, 2");
  std::vector<int> ranks(kRanksNamedMax);
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::string named = "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15";
  EXPECT_EQ(NameRanks(ranks), named);
  ranks.push_back(99);
  EXPECT_EQ(NameRanks(ranks), named + " and 1 more");
}

TEST(RollCallTest, AsksOnceUntilTheAnswerComes) {
  RollCall roll(3, kTimes);
  roll.OnHeard(0, In(WorkPhase::kExchange, 7), kStart);
  EXPECT_THAT(roll.TakeRanksToAsk(kStart), ElementsAre(1, 2));
  EXPECT_THAT(roll.TakeRanksToAsk(kStart + seconds(9)), ElementsAre(0));
  roll.OnHeard(1, In(WorkPhase::kForward, 7), kStart + seconds(9));
  EXPECT_THAT(roll.TakeRanksToAsk(kStart + milliseconds(9'500)), IsEmpty());
  EXPECT_THAT(roll.TakeRanksToAsk(kStart + seconds(10)), ElementsAre(1));
}

TEST(RollCallTest, WhoDoesNotAnswerIsTheRootWithWhatItSaidLast) {
  RollCall roll(3, kTimes);
  roll.OnHeard(1, In(WorkPhase::kForward, 12), kStart);
  roll.OnHeard(0, In(WorkPhase::kExchange, 12), kStart + seconds(3));
  roll.OnHeard(2, In(WorkPhase::kReadData, 12), kStart + seconds(3));
  EXPECT_THAT(roll.TakeRanksToAsk(kStart + milliseconds(3'200)), ElementsAre(1));
  EXPECT_EQ(Sentence(roll, kStart + seconds(4)), "none") << "its answer may still come";
  EXPECT_EQ(Sentence(roll, kStart + milliseconds(4'200)),
            "rank 1 does not answer: when last heard, 4.2 s ago, it was in forward of step 12");
  EXPECT_THAT(roll.FindRoot(kStart + milliseconds(4'200))->ranks, ElementsAre(1));
  roll.OnHeard(1, In(WorkPhase::kExchange, 12), kStart + milliseconds(4'300));
  EXPECT_NE(Sentence(roll, kStart + milliseconds(4'300)).find("rank 2 answers"), std::string::npos);
}

TEST(RollCallTest, WhoWasNeverHeardIsSaidToBeSo) {
  RollCall roll(2, kTimes);
  roll.TakeRanksToAsk(kStart);
  roll.OnHeard(0, In(WorkPhase::kExchange, -1), kStart + seconds(1));
  EXPECT_EQ(Sentence(roll, kStart + seconds(1)), "rank 1 does not answer, and has not been heard so far");
}

TEST(RollCallTest, HearsayTellsWhereASilentRankWas) {
  RollCall roll(2, kTimes);
  roll.TakeRanksToAsk(kStart);
  roll.OnHeard(0, In(WorkPhase::kExchange, 5), kStart + seconds(2));
  roll.OnHearsay(1, In(WorkPhase::kBackward, 5), kStart - seconds(1));
  roll.OnHearsay(1, In(WorkPhase::kForward, 5), kStart - seconds(2));  // older news
  EXPECT_EQ(Sentence(roll, kStart + seconds(2)),
            "rank 1 does not answer: when last heard, 3.0 s ago, it was in backward of step 5");
}

TEST(RollCallTest, TheRankFurthestBehindThatDoesNotWaitIsTheRoot) {
  RollCall roll(4, kTimes);
  roll.OnHeard(0, In(WorkPhase::kExchange, 3), kStart);  // waits, though its step is the lowest
  roll.OnHeard(1, In(WorkPhase::kReadData, 5), kStart);
  roll.OnHeard(2, In(WorkPhase::kForward, 4, milliseconds(4'300)), kStart);
  roll.OnHeard(3, In(WorkPhase::kExchange, 4), kStart);
  EXPECT_EQ(Sentence(roll, kStart + milliseconds(500)), "rank 2 answers, and has been in forward of step 4 for 4.8 s");
}

TEST(RollCallTest, AJobThatGoesOnSlowlyHasNoRoot) {
  RollCall roll(2, kTimes);
  roll.OnHeard(0, In(WorkPhase::kExchange, 3), kStart);
  roll.OnHeard(1, In(WorkPhase::kForward, 3, milliseconds(2'000)), kStart);
  EXPECT_EQ(Sentence(roll, kStart + seconds(1)), "none");
  EXPECT_EQ(Sentence(roll, kStart + seconds(2)), "rank 1 answers, and has been in forward of step 3 for 4.0 s");
}

TEST(RollCallTest, OldNewsIsNoAnswer) {
  RollCall roll(2, kTimes);
  roll.OnHeard(0, In(WorkPhase::kExchange, 3), kStart);
  roll.OnHeard(1, In(WorkPhase::kForward, 3), kStart);
  EXPECT_EQ(Sentence(roll, kStart + milliseconds(2'001)), "none");
}

TEST(RollCallTest, AnOpenQuestionIsWaitedFor) {
  RollCall roll(2, kTimes);
  roll.OnHeard(0, In(WorkPhase::kExchange, 3), kStart + seconds(1));
  roll.OnHeard(1, In(WorkPhase::kForward, 3), kStart);
  EXPECT_THAT(roll.TakeRanksToAsk(kStart + seconds(1)), ElementsAre(1));
  EXPECT_EQ(Sentence(roll, kStart + milliseconds(1'500)), "none");
  EXPECT_NE(Sentence(roll, kStart + seconds(2)).find("rank 1 does not answer"), std::string::npos);
}

TEST(RollCallTest, WhereAllWaitTheNetworkOrAServerIsAtFault) {
  RollCall roll(2, kTimes);
  for (int rank = 0; rank < 2; ++rank) roll.OnHeard(rank, In(WorkPhase::kExchange, 3), kStart);
  EXPECT_EQ(Sentence(roll, kStart), "all ranks answer, and wait in the exchange: look at the network between them");
  WorkState waits = In(WorkPhase::kExchange, 3);
  waits.silent_shard = 1;
  roll.OnHeard(1, waits, kStart);
  EXPECT_EQ(Sentence(roll, kStart), "rank 1 waits for the server of shard 1, which does not answer");
  EXPECT_THAT(roll.FindRoot(kStart)->ranks, IsEmpty());
}

TEST(RollCallTest, NamesFewOfManyRanks) {
  RollCall roll(7, kTimes);
  roll.TakeRanksToAsk(kStart);
  const auto root = roll.FindRoot(kStart + seconds(1));
  ASSERT_TRUE(root.has_value());
  EXPECT_EQ(root->ranks.size(), 7u);
  EXPECT_NE(root->sentence.find("rank 3 does not answer, and has not been heard so far; and so for 3 more ranks"),
            std::string::npos)
      << root->sentence;
}

}  // namespace
}  // namespace starring
