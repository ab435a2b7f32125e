#include "deploy/launch/run_watch.h"

#include <chrono>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

class StuckServersTest : public testing::Test {
 protected:
  void Answer(const std::vector<int>& missing, int64_t generation = 1) {
    now_ += milliseconds(250);
    servers_.OnAnswer({.generation = generation, .missing_shards = missing}, now_);
  }
  std::vector<int> Take() {
    std::vector<int> shards;
    for (const StuckServer& server : servers_.Take()) shards.push_back(server.shard);
    return shards;
  }

  StuckServers servers_{3};
  StuckServers::Time now_{std::chrono::hours(1)};
};

TEST_F(StuckServersTest, AServerIsStuckThatWasThereAndIsMissedTwice) {
  Answer({});
  const StuckServers::Time seen = now_;
  Answer({2});
  EXPECT_THAT(Take(), IsEmpty());  // a connection that broke is soon made again
  Answer({2});
  const std::vector<StuckServer> stuck = servers_.Take();
  ASSERT_EQ(stuck.size(), 1U);
  EXPECT_EQ(stuck[0].shard, 2);
  EXPECT_EQ(stuck[0].seen, seen);
  Answer({2});
  EXPECT_THAT(Take(), IsEmpty());  // once
}

TEST_F(StuckServersTest, AServerThatHasNotComeYetIsNotStuck) {
  Answer({}, /*generation=*/0);
  for (int i = 0; i < 5; ++i) Answer({1});
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(StuckServersTest, AConnectionThatIsMadeAgainIsNone) {
  Answer({});
  for (int i = 0; i < 5; ++i) {
    Answer({1});
    Answer({});
  }
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(StuckServersTest, ACoordinatorThatComesBackKnowsNobodyAtFirst) {
  Answer({});
  servers_.OnSilence(now_ += milliseconds(250));
  for (int i = 0; i < 5; ++i) Answer({1, 2});
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(StuckServersTest, ACoordinatorThatDoesNotAnswerIsStuck) {
  servers_.OnSilence(now_);  // it is being started
  EXPECT_THAT(Take(), IsEmpty());
  Answer({});
  servers_.OnSilence(now_ + StuckServers::kCoordinatorSilence);
  EXPECT_THAT(Take(), IsEmpty());
  servers_.OnSilence(now_ + StuckServers::kCoordinatorSilence + milliseconds(1));
  EXPECT_THAT(Take(), ElementsAre(0));
  servers_.OnSilence(now_ + 2 * StuckServers::kCoordinatorSilence);
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(StuckServersTest, ACoordinatorThatIsSlowAgainHasLonger) {
  for (int times = 1; times <= 4; times *= 2) {
    Answer({});
    servers_.OnSilence(now_ + times * StuckServers::kCoordinatorSilence);
    EXPECT_THAT(Take(), IsEmpty()) << times;
    servers_.OnSilence(now_ + times * StuckServers::kCoordinatorSilence + milliseconds(1));
    EXPECT_THAT(Take(), ElementsAre(0)) << times;
  }
}

}  // namespace
}  // namespace starring
