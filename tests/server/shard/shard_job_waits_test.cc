// Workers that keep a ShardJob waiting: deadlines, the stall report, and GetStatus.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard/shard_job_fixture.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::ExchangeMessage;

TEST(ShardJobWaitsTest, ALateContributionNamesRankBucketAndStep) {
  Shard shard(3);
  shard.SendInitialParameters();
  for (int rank = 0; rank < 3; ++rank) shard.SendGradient({rank, 0}, 0, 1);
  // The deadline counts from the first contribution to a step, so a pause between steps must not count.
  shard.now += seconds(100);
  shard.SendGradient({0, 0}, 1, 1);
  shard.SendGradient({2, 0}, 1, 1);
  shard.TakeAnswers();
  shard.now += seconds(10);
  shard.job->CheckDeadlines(shard.now);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.TakeAnswers();  // questions for progress
  shard.now += milliseconds(1);
  shard.job->CheckDeadlines(shard.now);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
  EXPECT_EQ(shard.job->status(),
            absl::DeadlineExceededError("rank 1 has not contributed bucket 1 of step 1 within 10 s"));
  EXPECT_THAT(shard.job->blamed(), ElementsAre(1));
  EXPECT_EQ(shard.TakeAnswers().size(), 3u);
}

// The answers of one kind, as "RANK: TEXT".
std::vector<std::string> TextsOf(const std::vector<Answer>& answers, ExchangeMessage::Kind kind) {
  std::vector<std::string> texts;
  for (const Answer& answer : answers) {
    if (answer.fields.kind() == kind) texts.push_back(absl::StrCat(answer.to.rank, ": ", answer.fields.text()));
  }
  return texts;
}

TEST(ShardJobWaitsTest, AStuckJobNamesWhoDoesNotAnswerToAllOthersAndTheLog) {
  Shard shard(3);
  shard.SendInitialParameters();
  for (int rank = 0; rank < 3; ++rank) shard.SendGradient({rank, 0}, 0, 1);
  shard.SendProgress(1, WorkPhase::kForward, 1);
  shard.SendGradient({0, 0}, 1, 1);
  shard.SendGradient({2, 0}, 1, 1);
  shard.TakeAnswers();
  shard.Tick(milliseconds(1'900));
  EXPECT_TRUE(shard.answers.empty());
  shard.Tick(milliseconds(100));
  // At 2 s, half of the time to a report, all workers are asked. Rank 1 does not answer, and is not asked again.
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::ASK_PROGRESS), ElementsAre("0: ", "1: ", "2: "));
  shard.SendProgress(0, WorkPhase::kExchange, 1);
  shard.SendProgress(2, WorkPhase::kExchange, 1);
  shard.Tick(milliseconds(1'500));
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::ASK_PROGRESS), ElementsAre("0: ", "2: "));
  shard.SendProgress(0, WorkPhase::kExchange, 1);
  shard.SendProgress(2, WorkPhase::kExchange, 1);
  EXPECT_THAT(shard.log, ElementsAre());
  shard.Tick(milliseconds(500));
  const std::string sentence =
      "stuck for 4.0 s (rank 1 has not contributed bucket 1 of step 1): rank 1 does not answer: when last heard, 4.0 s "
      "ago, it was in forward of step 1";
  EXPECT_THAT(shard.log, ElementsAre(sentence));
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::STALL), ElementsAre("0: " + sentence, "2: " + sentence));
  shard.Tick(milliseconds(2'000));
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::STALL), ElementsAre());
  shard.SendGradient({1, 0}, 1, 1);
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::STALL), ElementsAre("0: ", "2: "));
  EXPECT_THAT(shard.log, ElementsAre(sentence, "the job goes on after 6.0 s"));
}

TEST(ShardJobWaitsTest, TheDeadlineEndsTheJobWithTheSameSentence) {
  Shard shard(2);
  shard.SendInitialParameters();
  shard.SendProgress(1, WorkPhase::kCheckpoint, 4);
  shard.SendSum({0, 0}, 0, {1});
  for (int i = 0; i < 101; ++i) {  // 10.1 s, just over the deadline
    shard.SendProgress(0, WorkPhase::kExchange, 5);
    shard.Tick(milliseconds(100));
  }
  EXPECT_EQ(shard.job->status(),
            absl::DeadlineExceededError("rank 1 has not joined in sum 0 within 10 s: rank 1 does not answer: when last "
                                        "heard, 10.1 s ago, it was in the checkpoint after step 4"));
}

TEST(ShardJobWaitsTest, WhileWorkersSayThatTheyGoOnNothingIsReported) {
  Shard shard(2);
  shard.SendInitialParameters();
  shard.SendSum({0, 0}, 0, {1});
  for (int i = 0; i < 90; ++i) {  // 9 s: twice the time to a report, but within the deadline
    shard.SendProgress(0, WorkPhase::kExchange, 5);
    shard.SendProgress(1, WorkPhase::kEvaluation, i);
    shard.Tick(milliseconds(100));
  }
  EXPECT_THAT(shard.log, ElementsAre());
}

TEST(ShardJobWaitsTest, AWorkerThatAsksWhetherTheServerAnswersIsAnswered) {
  Shard shard(2);
  shard.SendProgress(1, WorkPhase::kForward, 0);
  EXPECT_TRUE(shard.TakeAnswers().empty());
  shard.SendProgress(1, WorkPhase::kForward, 0, /*asks=*/true);
  const std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.kind(), ExchangeMessage::HERE);
  EXPECT_EQ(answers[0].to, (LaneId{1, 0}));
}

TEST(ShardJobWaitsTest, SeveralMissingRanksHave) {
  Shard shard(3);
  shard.SendSum({1, 0}, 0, {1});
  shard.job->CheckDeadlines(shard.now + milliseconds(10'001));
  EXPECT_EQ(shard.job->status(), absl::DeadlineExceededError("ranks 0, 2 have not joined in sum 0 within 10 s"));
}

TEST(ShardJobWaitsTest, ALateContributionOfAWorkerThatIsGoneSaysSo) {
  Shard shard(2);
  shard.SendInitialParameters();
  shard.SendGradient({0, 0}, 0, 0);
  shard.job->OnLaneClosed({1, 0}, shard.now);
  shard.now += milliseconds(10'001);
  shard.job->CheckDeadlines(shard.now);
  EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("rank 1 has no connection to shard 0 any more"));
}

TEST(ShardJobWaitsTest, ManyLateWorkersThatAreGoneFitIntoALine) {
  Shard shard(40);
  shard.SendSum({0, 0}, 0, {1});
  for (int rank = 1; rank < 40; ++rank) shard.job->OnLaneClosed({rank, 0}, shard.now);
  shard.job->CheckDeadlines(shard.now + milliseconds(10'001));
  const std::string named = "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 23 more have";
  EXPECT_EQ(shard.job->status(),
            absl::DeadlineExceededError(absl::StrCat(named, " not joined in sum 0 within 10 s, ", named,
                                                     " no connection to shard 0 any more")));
}

TEST(ShardJobWaitsTest, ALateSumInitialParameterOrEndNamesTheRank) {
  Shard sum(2);
  sum.SendSum({0, 0}, 0, {1});
  sum.job->CheckDeadlines(sum.now + milliseconds(10'001));
  EXPECT_EQ(sum.job->status(), absl::DeadlineExceededError("rank 1 has not joined in sum 0 within 10 s"));

  Shard fetch(2);
  fetch.Send({1, 0}, Shard::Fields(ExchangeMessage::FETCH_PARAMETERS, -1, 0));
  fetch.job->CheckDeadlines(fetch.now + milliseconds(10'001));
  EXPECT_THAT(std::string(fetch.job->status().message()), AllOf(HasSubstr("rank 0"), HasSubstr("bucket 0")));

  Shard finish(2);
  finish.Send({1, 0}, Shard::Fields(ExchangeMessage::FINISH, 0, 0));
  finish.job->CheckDeadlines(finish.now + milliseconds(10'001));
  EXPECT_EQ(finish.job->status(), absl::DeadlineExceededError("rank 0 has not finished within 10 s"));
}

TEST(ShardJobWaitsTest, AWorkerThatDoesNotComeBackIsNamed) {
  Shard shard(2);
  shard.job->OnLaneOpen({1, 1});
  shard.job->OnLaneClosed({1, 1}, shard.now);
  shard.job->CheckDeadlines(shard.now + seconds(1000));  // the other lane is open
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.job->OnLaneClosed({1, 0}, shard.now);
  shard.job->CheckDeadlines(shard.now + seconds(10));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.job->OnLaneOpen({1, 0});  // back in time
  shard.job->CheckDeadlines(shard.now + seconds(11));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.job->OnLaneClosed({1, 0}, shard.now);
  shard.job->CheckDeadlines(shard.now + milliseconds(10'001));
  EXPECT_EQ(shard.job->status(),
            absl::UnavailableError("rank 1 is gone: it has had no connection to shard 0 for 10 s"));
}

TEST(ShardJobWaitsTest, AWorkerThatNeverConnectsHasBothDeadlines) {
  Shard shard(2);
  shard.job = shard.CreateJob();
  shard.job->OnLaneOpen({0, 0});
  shard.job->CheckDeadlines(shard.now + seconds(15));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.job->CheckDeadlines(shard.now + milliseconds(15'001));
  EXPECT_EQ(shard.job->status(),
            absl::UnavailableError("rank 1 is gone: it has opened no connection to shard 0 within 15 s, the join "
                                   "deadline of 5 s and the exchange deadline of 10 s"));
}

TEST(ShardJobWaitsTest, DescribesItself) {
  Shard shard(2);
  shard.SendInitialParameters();
  for (int rank = 0; rank < 2; ++rank) shard.SendGradient({rank, 0}, 0, 0);
  shard.SendGradient({0, 0}, 0, 1);
  v1::GetStatusReply reply;
  shard.job->Describe(&reply);
  EXPECT_EQ(reply.state(), v1::GetStatusReply::RUNNING);
  EXPECT_EQ(reply.world_size(), 2);
  EXPECT_EQ(reply.steps_complete(), 0);
  ASSERT_EQ(reply.workers_size(), 2);
  EXPECT_EQ(reply.workers(0).contributions(), 2);
  EXPECT_EQ(reply.workers(0).buckets_missing(), 0);
  EXPECT_EQ(reply.workers(1).contributions(), 1);
  EXPECT_EQ(reply.workers(1).buckets_missing(), 1);
  EXPECT_EQ(reply.workers(1).lanes_open(), 1);
  EXPECT_GT(reply.bytes_received(), 0);
  EXPECT_GT(reply.bytes_sent(), 0);
}

// The thread that sums answers GetStatus too, as often as a client asks. The shortest of many calls counts, because a
// busy machine only makes calls longer.
TEST(ShardJobWaitsTest, DescribingManyBucketsTakesNoLonger) {
  const auto shortest_of = [](int64_t elements) {
    Shard shard(1, elements);
    shard.SendInitialParameters();
    auto shortest = std::chrono::nanoseconds::max();
    for (int i = 0; i < 1000; ++i) {
      v1::GetStatusReply reply;
      const auto begin = std::chrono::steady_clock::now();
      shard.job->Describe(&reply);
      shortest = std::min<std::chrono::nanoseconds>(shortest, std::chrono::steady_clock::now() - begin);
    }
    return shortest;
  };
  // 512 locks take 3 us. A single call takes about as long as the clock's own steps.
  EXPECT_LT(shortest_of(512 * ChunkElements(1)), shortest_of(ChunkElements(1)) + std::chrono::microseconds(1));
}

TEST(ShardJobWaitsTest, CountsTheStepsThatAreOverForEveryBucket) {
  Shard shard(1, 3 * ChunkElements(1));
  const auto complete_after = [&](int64_t step, int bucket) {
    shard.SendGradient({0, 0}, step, bucket);
    v1::GetStatusReply reply;
    shard.job->Describe(&reply);
    return reply.steps_complete();
  };
  shard.SendInitialParameters();
  for (int64_t step = 0; step < 3; ++step) EXPECT_EQ(complete_after(step, 0), 0);  // the other buckets are older
  EXPECT_EQ(complete_after(0, 1), 0);
  EXPECT_EQ(complete_after(1, 1), 0);
  EXPECT_EQ(complete_after(0, 2), 1);
  EXPECT_EQ(complete_after(1, 2), 2);
  EXPECT_EQ(complete_after(2, 2), 2);
  EXPECT_EQ(complete_after(2, 1), 3);
}

TEST(ShardJobWaitsTest, CountsTheBucketsThatWaitForAWorker) {
  Shard shard(3, 3 * ChunkElements(1));
  ASSERT_EQ(shard.spec.buckets.bucket_count(), 3);
  const auto missing = [&] {
    v1::GetStatusReply reply;
    shard.job->Describe(&reply);
    std::vector<int> counts;
    for (const auto& worker : reply.workers()) counts.push_back(worker.buckets_missing());
    return counts;
  };
  shard.SendInitialParameters();
  EXPECT_THAT(missing(), ElementsAre(0, 0, 0));
  shard.SendGradient({0, 0}, 0, 0);
  shard.SendGradient({0, 0}, 0, 1);
  shard.SendGradient({2, 0}, 0, 1);
  shard.SendGradient({2, 0}, 0, 1);  // once more
  EXPECT_THAT(missing(), ElementsAre(0, 2, 1));
  shard.SendGradient({1, 0}, 0, 1);
  EXPECT_THAT(missing(), ElementsAre(0, 1, 1));
  shard.SendGradient({1, 0}, 0, 0);
  shard.SendGradient({2, 0}, 0, 0);
  EXPECT_THAT(missing(), ElementsAre(0, 0, 0));
  shard.SendGradient({1, 0}, 1, 2);  // too early: fails the job, and counts nothing
  EXPECT_THAT(missing(), ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace starring
