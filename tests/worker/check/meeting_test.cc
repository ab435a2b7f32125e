#include "worker/check/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/steady_time.h"

namespace starring {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct SharedNotes {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::string> notes;
};

class MemoryBoard final : public NoteBoard {
 public:
  MemoryBoard(SharedNotes* shared, int rank) : shared_(shared), rank_(rank) {}
  absl::Status Put(int stage, const std::string& text) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->notes[{rank_, stage}] = text;
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(int rank, int stage) override {
    const std::lock_guard lock(shared_->mutex);
    const auto found = shared_->notes.find({rank, stage});
    if (found == shared_->notes.end()) return std::optional<std::string>();
    return std::optional<std::string>(found->second);
  }

 private:
  SharedNotes* const shared_;
  const int rank_;
};

v1::ProcessReport ReportOf(int rank) {
  v1::ProcessReport report;
  report.mutable_facts()->set_number(rank);
  return report;
}

BoardMeeting::Options OptionsOf(NoteBoard* board, int rank, int world_size, absl::Time begin) {
  return {.board = board, .rank = rank, .world_size = world_size, .gather_end = begin + kGatherDeadline};
}

TEST(BoardMeetingTest, OneTestsAtATimeAndAllEndWithTheVerdict) {
  constexpr int kWorldSize = 5;
  SharedNotes shared;
  std::mutex mutex;
  std::vector<int> turns;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    threads.emplace_back([&, rank] {
      MemoryBoard board(&shared, rank);
      BoardMeeting meeting(OptionsOf(&board, rank, kWorldSize, SteadyNow()));
      ASSERT_TRUE(meeting.PutCard(ReportOf(rank)).ok());
      meeting.AwaitTurn(1);
      {
        const std::lock_guard lock(mutex);
        turns.push_back(rank);
      }
      // Two rounds, as where MPI is tried.
      for (const int verdict : {0, 3}) {
        const auto reports = meeting.Gather(ReportOf(rank));
        ASSERT_TRUE(reports.ok());
        EXPECT_EQ(reports->size(), static_cast<size_t>(rank == 0 ? kWorldSize : 0));
        int exit_code = rank == 0 ? verdict : -1;
        EXPECT_TRUE(meeting.Tell(exit_code).ok());
        EXPECT_EQ(exit_code, verdict);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns, (std::vector<int>{0, 1, 2, 3, 4}));
}

// At the deadline rank 1 has not come, and rank 2 has not ended its tests.
TEST(BoardMeetingTest, AMissingWorkerHasNoReport) {
  SharedNotes shared;
  MemoryBoard board(&shared, 2);
  BoardMeeting second(OptionsOf(&board, 2, 3, absl::InfinitePast()));
  ASSERT_TRUE(second.PutCard(ReportOf(2)).ok());
  second.AwaitTurn(1);

  MemoryBoard first_board(&shared, 0);
  BoardMeeting first(OptionsOf(&first_board, 0, 3, absl::InfinitePast()));
  const auto reports = first.Gather(ReportOf(0));
  ASSERT_TRUE(reports.ok());
  ASSERT_EQ(reports->size(), 2u);
  EXPECT_EQ(reports->at(0).facts().number(), 0);
  EXPECT_EQ(reports->at(1).facts().number(), 2) << "by its card";
}

TEST(BoardMeetingTest, AWorkerThatHearsNoVerdictIsAlone) {
  SharedNotes shared;
  MemoryBoard board(&shared, 1);
  BoardMeeting meeting(OptionsOf(&board, 1, 2, absl::InfinitePast()));
  int exit_code = 0;
  EXPECT_EQ(meeting.Tell(exit_code), AloneError(1));
  EXPECT_THAT(std::string(AloneError(1).message()), StartsWith("rank 0 did not answer to w1"));
  EXPECT_THAT(std::string(AloneError(0).message()), StartsWith("w0 cannot leave notes for the other workers"));
}

TEST(RingTargetsTest, AreAllOthersOfASmallRing) {
  EXPECT_THAT(RingTargets(0, 1), IsEmpty());
  EXPECT_THAT(RingTargets(1, 2), ElementsAre(0));
  EXPECT_THAT(RingTargets(2, 4), ElementsAre(0, 1, 3));
}

TEST(RingTargetsTest, AreFewInALargeRing) {
  for (const int rank : {0, 1, 511, 1023}) {
    const std::vector<int> targets = RingTargets(rank, 1024);
    EXPECT_LE(targets.size(), 12u);
    EXPECT_THAT(targets, Contains((rank + 1) % 1024));
    EXPECT_THAT(targets, Contains((rank + 1023) % 1024));
    EXPECT_EQ(std::count(targets.begin(), targets.end(), rank), 0);
  }
}

// The time of all tests together, for jobs of every size.
TEST(PlanBandwidthTest, EndsInTime) {
  for (const int tests_per_rank : {1, 2, 4, 256}) {
    for (const int world_size : {1, 2, 64, 100, 1024}) {
      const BandwidthPlan plan = PlanBandwidth(tests_per_rank, world_size);
      const int testers = (world_size + plan.rank_stride - 1) / plan.rank_stride;
      EXPECT_GE(plan.seconds, 0.02);
      EXPECT_LE(plan.seconds, 0.1);
      // Rounding up to whole strides may add the time of one more rank.
      EXPECT_LE(plan.seconds * tests_per_rank * testers, 20 + plan.seconds * tests_per_rank)
          << tests_per_rank << " tests by " << world_size;
    }
  }
}

TEST(PlanBandwidthTest, IsWholeForASmallJob) {
  const BandwidthPlan plan = PlanBandwidth(4, 4);
  EXPECT_EQ(plan.seconds, 0.1);
  EXPECT_EQ(plan.rank_stride, 1);
}

}  // namespace
}  // namespace starring
