#include "server/shard/shard_job.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard/shard_job_fixture.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::ExchangeMessage;

TEST(ShardJobTest, SumsAndAnswersAllRanksOnceAllAreThere) {
  Shard shard(2);
  shard.SendInitialParameters();
  EXPECT_EQ(shard.TakeAnswers().size(), static_cast<size_t>(shard.spec.buckets.bucket_count()));
  shard.SendGradient({1, 0}, 0, 2);
  EXPECT_TRUE(shard.answers.empty());
  shard.SendGradient({0, 0}, 0, 2);
  const std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].to, (LaneId{0, 0}));
  EXPECT_EQ(answers[1].to, (LaneId{1, 0}));
  const std::vector<float> expected = ReferenceRun(shard.spec, 1, RoughGradientAt);
  const ElementRange range = shard.spec.buckets.bucket(2);
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.fields.kind(), ExchangeMessage::PARAMETERS);
    EXPECT_EQ(answer.fields.step(), 0);
    EXPECT_EQ(answer.fields.bucket(), 2);
    EXPECT_EQ(Values<float>(answer), std::vector<float>(expected.begin() + range.begin, expected.begin() + range.end));
    EXPECT_EQ(answer.payload.data(), answers[0].payload.data());  // one memory for all
  }
}

// If all shards answered rank 0 first, its link would be busy while those of the others are idle.
TEST(ShardJobTest, EveryShardAnswersAnotherRankFirst) {
  constexpr int kWorkers = 4;
  for (int index = 0; index < 4; ++index) {
    Shard shard(kWorkers, 300'000, 1, {.index = index, .count = 4});
    shard.SendInitialParameters();
    shard.TakeAnswers();
    for (int rank = 0; rank < kWorkers; ++rank) shard.SendGradient({rank, 0}, 0, 0);
    std::vector<int> order;
    for (const Answer& answer : shard.TakeAnswers()) order.push_back(answer.to.rank);
    EXPECT_THAT(order, ElementsAre(index, (index + 1) % 4, (index + 2) % 4, (index + 3) % 4));
  }
}

// Doubled, late and out of order, from every lane: the sum stays exact.
TEST(ShardJobTest, DuplicatesChangeNothing) {
  constexpr int kSteps = 5;
  Shard shard(3);
  const int bucket_count = shard.spec.buckets.bucket_count();
  shard.SendInitialParameters();
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < bucket_count; ++i) {
      const int b = static_cast<int>((i * 3 + step) % bucket_count);
      shard.SendGradient({2, 0}, step, b);
      shard.SendGradient({2, 1}, step, b);
      if (step > 0) shard.SendGradient({1, 0}, step - 1, b);  // late: that step is sealed
      shard.SendGradient({0, 0}, step, b);
      shard.SendGradient({2, 0}, step, b);
      if (step > 1) shard.SendGradient({0, 0}, step - 2, b);  // so late that no worker waits
      shard.SendGradient({1, 0}, step, b);
      shard.SendGradient({1, 0}, step, b);
    }
  }
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning) << shard.job->status();
  const std::vector<float> expected = ReferenceRun(shard.spec, kSteps, RoughGradientAt);
  shard.TakeAnswers();
  for (int b = 0; b < bucket_count; ++b) {
    shard.SendGradient({0, 0}, kSteps - 1, b);  // asks again for the last answer
    ASSERT_EQ(shard.answers.size(), 1u);
    const ElementRange range = shard.spec.buckets.bucket(b);
    EXPECT_EQ(Values<float>(shard.TakeAnswers()[0]),
              std::vector<float>(expected.begin() + range.begin, expected.begin() + range.end));
  }
}

TEST(ShardJobTest, ARepeatedGradientIsAnsweredWhereItCameFromLast) {
  Shard shard(2);
  shard.SendInitialParameters();
  shard.SendGradient({1, 0}, 0, 0);
  shard.job->OnLaneClosed({1, 0}, shard.now);
  shard.job->OnLaneOpen({1, 3});
  shard.SendGradient({1, 3}, 0, 0);
  shard.TakeAnswers();
  shard.SendGradient({0, 0}, 0, 0);
  const std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[1].to, (LaneId{1, 3}));
}

TEST(ShardJobTest, AnAnswerKeepsItsBytesWhileLaterStepsGoOn) {
  Shard shard(1);
  shard.SendInitialParameters();
  shard.TakeAnswers();
  shard.SendGradient({0, 0}, 0, 0);
  const Answer slow = shard.TakeAnswers().at(0);
  const std::vector<float> before = Values<float>(slow);
  // More steps than a bucket has buffers: the one that the slow answer holds must not be written to again.
  for (int64_t step = 1; step < 6; ++step) shard.SendGradient({0, 0}, step, 0);
  EXPECT_EQ(Values<float>(slow), before);
}

TEST(ShardJobTest, FetchesWaitForTheInitialParameters) {
  Shard shard(2);
  shard.Send({1, 0}, Shard::Fields(ExchangeMessage::FETCH_PARAMETERS, -1, 1));
  EXPECT_TRUE(shard.answers.empty());
  shard.SendInitialParameters();
  shard.Send({1, 0}, Shard::Fields(ExchangeMessage::FETCH_PARAMETERS, -1, 1));  // once more
  int parameters = 0;
  for (const Answer& answer : shard.TakeAnswers()) {
    if (answer.fields.kind() != ExchangeMessage::PARAMETERS) continue;
    ++parameters;
    EXPECT_EQ(answer.fields.step(), -1);
    EXPECT_EQ(answer.to, (LaneId{1, 0}));
    EXPECT_EQ(answer.payload.size(), static_cast<size_t>(shard.spec.buckets.bucket(1).size() * 4));
  }
  EXPECT_EQ(parameters, 2);
}

TEST(ShardJobTest, KeepsTheOptimizersState) {
  Shard shard(1);
  const std::vector<float> state = InitialParameters(shard.spec.layout.element_count());
  shard.Send({0, 0}, Shard::Fields(ExchangeMessage::INITIAL_STATE, -1, 1), shard.Slice(state, 1));
  EXPECT_EQ(shard.TakeAnswers().at(0).fields.kind(), ExchangeMessage::ACCEPTED);
  shard.Send({0, 0}, Shard::Fields(ExchangeMessage::FETCH_STATE, 0, 1));
  const Answer answer = shard.TakeAnswers().at(0);
  EXPECT_EQ(answer.fields.kind(), ExchangeMessage::STATE);
  const ElementRange range = shard.spec.buckets.bucket(1);
  EXPECT_EQ(Values<float>(answer), std::vector<float>(state.begin() + range.begin, state.begin() + range.end));
}

// A checkpoint is read while training goes on: newer snapshots come, and older ones are dropped.
TEST(ShardJobTest, AStateIsReadFromASnapshot) {
  Shard shard(1);
  const BucketMap& buckets = shard.spec.buckets;
  SnapshotStore::Options options{.vector_count = 1};
  for (int b = 0; b < buckets.bucket_count(); ++b) options.slice_elements.push_back(buckets.bucket(b).size());
  const auto store = SnapshotStore::Open(options).value();
  const std::vector<float> state = InitialParameters(buckets.element_count()), other(state.size(), 7.0f);
  const auto take = [&](int64_t step, std::span<const float> values) {
    for (int b = 0; b < buckets.bucket_count(); ++b) {
      const ElementRange range = buckets.bucket(b);
      const auto parameters = std::span<const float>(other).subspan(range.begin, range.size());
      store->Take(step, b, std::vector{parameters, values.subspan(range.begin, range.size())});
    }
  };
  take(5, state);
  shard.snapshots = store.get();
  shard.job = shard.CreateJob();
  shard.job->OnLaneOpen({0, 0});
  for (int b = buckets.bucket_count() - 1; b >= 0; --b) {
    shard.Send({0, 0}, Shard::Fields(ExchangeMessage::FETCH_STATE, 5, b));
    const ElementRange range = buckets.bucket(b);
    EXPECT_EQ(Values<float>(shard.TakeAnswers().at(0)),
              std::vector<float>(state.begin() + range.begin, state.begin() + range.end));
    for (int64_t step = 6; step < 10; ++step) take(step + 4 * b, other);  // the store forgets step 5
  }
  shard.Send({0, 0}, Shard::Fields(ExchangeMessage::FETCH_STATE, 99, 0));
  EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("no snapshot of step 99"));
}

TEST(ShardJobTest, AJobDoesNotHoldTheSnapshotWithWhichItBegan) {
  Shard shard(1, 1000);
  int64_t elements = 0;
  for (int b = 0; b < shard.spec.buckets.bucket_count(); ++b) elements += shard.spec.buckets.bucket(b).size();
  const auto start = std::make_shared<Snapshot>();
  for (int i = 0; i < 2; ++i) start->arrays.emplace_back(elements);
  start->side_values = {1.5, 2.5};
  shard.start = start;
  shard.job = shard.CreateJob();
  shard.start = nullptr;
  EXPECT_EQ(start.use_count(), 1);
  shard.job->OnLaneOpen({0, 0});
  shard.Send({0, 0}, Shard::Fields(ExchangeMessage::FETCH_SIDE_VALUES, 0, 0));
  const std::vector<double> values = Values<double>(shard.TakeAnswers().at(0));
  ASSERT_GE(values.size(), 3u);
  EXPECT_THAT(std::vector(values.begin(), values.begin() + 3), ElementsAre(2, 1.5, 2.5));
}

TEST(ShardJobTest, SideValuesAreOfTheNextSnapshot) {
  for (const int64_t step : {4, 0, 2, 3, 5, 8}) {
    Shard shard(1, 1000);
    SnapshotStore::Options options{.vector_count = 1, .has_side_values = true};
    for (int b = 0; b < shard.spec.buckets.bucket_count(); ++b) {
      options.slice_elements.push_back(shard.spec.buckets.bucket(b).size());
    }
    const auto store = SnapshotStore::Open(options).value();
    shard.snapshots = store.get();
    shard.snapshot_every = 4;
    shard.job = shard.CreateJob();
    shard.job->OnLaneOpen({0, 0});
    shard.SendInitialParameters();
    for (int64_t sent = 0; sent < 3; ++sent) {
      for (int b = 0; b < shard.spec.buckets.bucket_count(); ++b) shard.SendGradient({0, 0}, sent, b);
    }
    shard.TakeAnswers();
    const std::vector<double> values = {1.5};
    shard.Send({0, 0}, Shard::Fields(ExchangeMessage::SIDE_VALUES, step, 0), std::as_bytes(std::span(values)));
    if (step == 4) {
      EXPECT_EQ(shard.TakeAnswers().at(0).fields.kind(), ExchangeMessage::ACCEPTED);
      continue;
    }
    EXPECT_EQ(shard.job->status().code(), absl::StatusCode::kInvalidArgument) << step;
    EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr(absl::StrCat("SIDE_VALUES of step ", step)));
    EXPECT_EQ(store->bytes_in_memory(), 0) << step;
  }
}

TEST(ShardJobTest, SumsDoublesInRankOrder) {
  Shard shard(3);
  // In rank order this is 1: the large values cancel first.
  shard.SendSum({2, 0}, 0, {1.0, 3});
  shard.SendSum({1, 0}, 0, {-1e300, 2});
  shard.SendSum({1, 1}, 0, {-1e300, 2});
  EXPECT_TRUE(shard.answers.empty());
  shard.SendSum({0, 0}, 0, {1e300, 1});
  std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 3u);
  for (const Answer& answer : answers) EXPECT_THAT(Values<double>(answer), ElementsAre(1.0, 6));
  EXPECT_EQ(answers[1].to, (LaneId{1, 1}));
  // Rank 1's answer was lost while rank 0 was in the next sum already.
  shard.SendSum({0, 0}, 1, {5});
  shard.SendSum({1, 0}, 0, {-1e300, 2});
  answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.step(), 0);
  EXPECT_THAT(Values<double>(answers[0]), ElementsAre(1.0, 6));
}

TEST(ShardJobTest, FinishesWhenAllHave) {
  Shard shard(2);
  const ExchangeMessage finish = Shard::Fields(ExchangeMessage::FINISH, 0, 0);
  shard.Send({0, 0}, finish);
  shard.Send({0, 0}, finish);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.Send({1, 0}, finish);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFinished);
  EXPECT_EQ(shard.TakeAnswers().size(), 2u);
  shard.Send({1, 0}, finish);  // the answer was lost
  EXPECT_EQ(shard.TakeAnswers().at(0).fields.kind(), ExchangeMessage::FINISHED);
}

TEST(ShardJobTest, AnAbortReachesEveryWorkerAndThoseWhoComeBackLater) {
  Shard shard(3);
  ExchangeMessage abort = Shard::Fields(ExchangeMessage::ABORT, 0, 0);
  abort.set_text("the gradient of fc1.weight is NaN");
  shard.Send({1, 0}, abort);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
  std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 3u);
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.fields.kind(), ExchangeMessage::ERROR);
    EXPECT_EQ(answer.fields.code(), static_cast<int>(absl::StatusCode::kAborted));
    EXPECT_THAT(answer.fields.text(), AllOf(HasSubstr("rank 1"), HasSubstr("fc1.weight")));
  }
  shard.job->OnLaneOpen({2, 1});
  EXPECT_EQ(shard.TakeAnswers().at(0).fields.kind(), ExchangeMessage::ERROR);
  shard.SendGradient({0, 0}, 0, 0);  // too late: ignored
  EXPECT_TRUE(shard.answers.empty());
}

// A launcher finds the cause by the exit codes of the processes, which come from the codes of the statuses. If a rank
// gives up because it misses a peer, the others must not look like the cause.
TEST(ShardJobTest, TheOthersOfARankThatMissesAPeerMissOneToo) {
  using enum absl::StatusCode;
  for (const auto& [code, expected] :
       {std::pair(kUnavailable, kUnavailable), std::pair(kDeadlineExceeded, kDeadlineExceeded),
        std::pair(kInvalidArgument, kAborted), std::pair(kOk, kAborted)}) {
    Shard shard(2);
    ExchangeMessage abort = Shard::Fields(ExchangeMessage::ABORT, 0, 0);
    abort.set_code(static_cast<int>(code));
    shard.Send({1, 0}, abort);
    EXPECT_EQ(shard.job->status().code(), expected);
    EXPECT_EQ(shard.TakeAnswers().at(0).fields.code(), static_cast<int>(expected));
  }
}

TEST(ShardJobTest, AWrongMessageFailsTheJobNamingTheRank) {
  struct Case {
    const char* name;
    std::function<void(Shard*)> send;
    std::string expected;
  };
  const std::vector<float> few(10);
  const auto bytes = std::as_bytes(std::span(few));
  const Case cases[] = {
      {"bucket",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::GRADIENT, 0, 99), bytes);
       },
       "99"},
      {"negative",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::GRADIENT, 0, -1), bytes);
       },
       "-1"},
      {"length",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::GRADIENT, 0, 0), bytes);
       },
       "40"},
      {"step",
       [](Shard* s) {
         s->SendGradient({1, 0}, 3, 0);
       },
       "3"},
      {"vector",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::FETCH_STATE, 0, 0, 1));
       },
       "vector 1"},
      {"sum number",
       [](Shard* s) {
         s->SendSum({1, 0}, 2, {1.0});
       },
       "sum 2"},
      {"sum size",
       [](Shard* s) {
         s->SendSum({1, 0}, 0, std::vector<double>(5000));
       },
       "40000"},
      {"sum bytes",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::SUM, 0, 0), bytes.subspan(1));
       },
       "39"},
      {"sums differ",
       [](Shard* s) {
         s->SendSum({0, 0}, 0, {1.0});
         s->SendSum({1, 0}, 0, {1.0, 2.0});
       },
       "2 values"},
      {"sums of different purposes",
       [&](Shard* s) {
         for (int rank = 0; rank < 2; ++rank) {
           ExchangeMessage sum = Shard::Fields(ExchangeMessage::SUM, 0, 0);
           sum.set_sum_purpose(static_cast<int>(rank == 0 ? SumPurpose::kStopVote : SumPurpose::kEpoch));
           s->Send({rank, 0}, sum, bytes.first(16));
         }
       },
       "rank 1 adds 2 values for the end of an epoch, rank 0 adds 2 values for a vote to stop"},
      {"kind",
       [](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::PARAMETERS, 0, 0));
       },
       "17"},
  };
  for (const Case& c : cases) {
    Shard shard(2);
    shard.SendInitialParameters();
    shard.TakeAnswers();
    c.send(&shard);
    EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed) << c.name;
    EXPECT_THAT(std::string(shard.job->status().message()), AllOf(HasSubstr("rank 1"), HasSubstr(c.expected)))
        << c.name;
  }
}

TEST(ShardJobTest, ARepeatedInitialStateChangesNothing) {
  Shard shard(2);
  const std::vector<float> state = InitialParameters(shard.spec.layout.element_count());
  const ExchangeMessage initial_state = Shard::Fields(ExchangeMessage::INITIAL_STATE, -1, 1);
  shard.Send({0, 0}, initial_state, shard.Slice(state, 1));
  shard.SendInitialParameters();
  // Rank 0's lane broke before it got the answer; rank 1 has contributed meanwhile.
  shard.SendGradient({1, 0}, 0, 1);
  shard.TakeAnswers();
  shard.Send({0, 0}, initial_state, shard.Slice(state, 1));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning) << shard.job->status();
  EXPECT_EQ(shard.TakeAnswers().at(0).fields.kind(), ExchangeMessage::ACCEPTED);
}

TEST(ShardJobTest, OnlyRank0SaysWhatAllStartFrom) {
  for (const auto kind : {ExchangeMessage::INITIAL_PARAMETERS, ExchangeMessage::INITIAL_STATE}) {
    Shard shard(2);
    const std::vector<float> values = InitialParameters(shard.spec.layout.element_count());
    shard.Send({1, 0}, Shard::Fields(kind, -1, 0), shard.Slice(values, 0));
    EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
    EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("rank 0 alone"));
  }
}

TEST(ShardJobTest, StateIsCopiedWhenItsTurnHasCome) {
  Shard shard(1);
  std::vector<Answer> waiting;
  shard.on_answer = [&](Answer answer) { waiting.push_back(std::move(answer)); };
  shard.Send({0, 0}, Shard::Fields(ExchangeMessage::FETCH_STATE, 0, 0));
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_TRUE(waiting[0].payload.empty());
  ASSERT_NE(waiting[0].make, nullptr);
  EXPECT_EQ(waiting[0].made_count, shard.spec.buckets.bucket(0).size());
  std::vector<float> part(2, 5.0f);
  waiting[0].make(waiting[0].made_count - 2, part);
  EXPECT_THAT(part, ElementsAre(0.0f, 0.0f));
  // On two lanes there could be two copies at a time.
  shard.job->OnLaneOpen({0, 1});
  shard.Send({0, 1}, Shard::Fields(ExchangeMessage::FETCH_STATE, 0, 0));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
  EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("lane 0"));
}

TEST(ShardJobTest, APartOfAShortSliceIsRefused) {
  Shard shard(1);
  shard.SendInitialParameters();
  const std::vector<float> values(shard.spec.layout.element_count());
  ExchangeMessage fields = Shard::Fields(ExchangeMessage::GRADIENT, 0, 0);
  fields.set_part(1);
  shard.Send({0, 0}, fields, shard.Slice(values, 0));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
  EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("part 1"));
}

}  // namespace
}  // namespace starring
