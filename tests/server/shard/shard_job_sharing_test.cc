// A ShardJob whose workers share memory with it.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/wire/shared_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard/shard_job_fixture.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using v1::ExchangeMessage;

std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST(ShardJobSharingTest, WorkersOnThisMachineReadParametersWhereTheShardWritesThem) {
  constexpr int kSteps = 4;
  Shard shard(2);
  const std::unique_ptr<SharedMemory> gradients[2] = {shard.MakeMemory(), shard.MakeMemory()};
  const auto parameters = shard.OpenMemory(shard.Share({0, 0}, gradients[0]->where()));
  EXPECT_EQ(shard.Share({1, 0}, gradients[1]->where()).parameter_memory().nonce(), parameters->where().nonce());
  shard.SendInitialParameters();
  EXPECT_EQ(Copy(parameters->values()), InitialParameters(shard.spec.layout.element_count()));
  shard.TakeAnswers();
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int b = 0; b < shard.spec.buckets.bucket_count(); ++b) {
      for (const int rank : {1, 0, 1}) shard.SendSharedGradient({rank, 0}, step, b, gradients[rank].get());
      const std::vector<Answer> answers = shard.TakeAnswers();
      ASSERT_EQ(answers.size(), 3u);  // the repeat is answered too
      for (const Answer& answer : answers) {
        EXPECT_TRUE(answer.fields.shared());
        EXPECT_TRUE(answer.payload.empty());
      }
    }
    EXPECT_EQ(Copy(parameters->values()), ReferenceRun(shard.spec, step + 1, RoughGradientAt));
  }
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning) << shard.job->status();
}

// A gradient is sent again after a broken connection, while its memory already holds the next step's.
TEST(ShardJobSharingTest, ALateRepeatReadsNoSharedMemory) {
  Shard shard(2);
  const std::unique_ptr<SharedMemory> gradients[2] = {shard.MakeMemory(), shard.MakeMemory()};
  const auto parameters = shard.OpenMemory(shard.Share({0, 0}, gradients[0]->where()));
  shard.Share({1, 0}, gradients[1]->where());
  shard.SendInitialParameters();
  for (const int rank : {0, 1}) shard.SendSharedGradient({rank, 0}, 0, 0, gradients[rank].get());
  std::ranges::fill(gradients[0]->writable_values(), 1e30f);
  shard.SendShared({0, 1}, ExchangeMessage::GRADIENT, 0, 0);
  for (const int rank : {0, 1}) shard.SendSharedGradient({rank, 0}, 1, 0, gradients[rank].get());
  std::ranges::fill(gradients[0]->writable_values(), 1e30f);
  shard.SendShared({0, 1}, ExchangeMessage::GRADIENT, 0, 0);
  shard.SendShared({0, 1}, ExchangeMessage::GRADIENT, 1, 0);
  const ElementRange range = shard.spec.buckets.bucket(0);
  const std::vector<float> expected = ReferenceRun(shard.spec, 2, RoughGradientAt);
  EXPECT_EQ(Copy(parameters->values().subspan(range.begin, range.size())),
            std::vector<float>(expected.begin() + range.begin, expected.begin() + range.end));
}

TEST(ShardJobSharingTest, AWorkerThatSharesLateFindsTheParameters) {
  Shard shard(2);
  shard.SendInitialParameters();
  const auto gradients = shard.MakeMemory();
  const auto parameters = shard.OpenMemory(shard.Share({1, 0}, gradients->where()));
  EXPECT_EQ(Copy(parameters->values()), InitialParameters(shard.spec.layout.element_count()));
  shard.SendShared({1, 0}, ExchangeMessage::FETCH_PARAMETERS, -1, 2);
  const std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].fields.shared());
}

TEST(ShardJobSharingTest, MemoryThatCannotBeSharedIsAnsweredWithNone) {
  Shard shard(1);
  v1::SharedMemory elsewhere = shard.MakeMemory()->where();  // gone
  EXPECT_FALSE(shard.Share({0, 0}, elsewhere).has_parameter_memory());
  auto shorter = SharedMemory::Create(shard.spec.layout.element_count() - 1);
  ASSERT_TRUE(shorter.ok());
  EXPECT_FALSE(shard.Share({0, 0}, (*shorter)->where()).has_parameter_memory());
  const auto gradients = shard.MakeMemory();
  EXPECT_FALSE(shard.Share({0, 0}, gradients->where(), &elsewhere).has_parameter_memory());
  // All workers must name one memory for parameters.
  const auto parameters = shard.MakeMemory();
  const auto others = shard.MakeMemory();
  EXPECT_TRUE(shard.Share({0, 0}, gradients->where(), &parameters->where()).has_parameter_memory());
  EXPECT_FALSE(shard.Share({0, 0}, gradients->where(), &others->where()).has_parameter_memory());
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning) << shard.job->status();
}

TEST(ShardJobSharingTest, ASharedGradientWithoutSharedMemoryFailsTheJob) {
  for (const auto kind : {ExchangeMessage::GRADIENT, ExchangeMessage::FETCH_PARAMETERS}) {
    Shard shard(1);
    shard.SendInitialParameters();
    shard.SendShared({0, 0}, kind, 0, 0);
    EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
    EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("none is shared"));
  }
}

TEST(ShardJobSharingTest, MemoryThatNobodyReadsIsNotWrittenTo) {
  Shard shard(2);
  shard.SendInitialParameters();
  const auto gradients = shard.MakeMemory();
  const auto parameters = shard.OpenMemory(shard.Share({0, 0}, gradients->where()));
  // The worker could not share with another shard, so it goes on by socket.
  const std::vector<float> before = Copy(parameters->values());
  for (int rank = 0; rank < 2; ++rank) shard.SendGradient({rank, 0}, 0, 0);
  EXPECT_EQ(shard.TakeAnswers().size(), 2u);
  EXPECT_EQ(Copy(parameters->values()), before);
}

}  // namespace
}  // namespace starring
