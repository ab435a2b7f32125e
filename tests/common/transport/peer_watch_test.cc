#include "common/transport/peer_watch.h"

#include <deque>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Ranks whose notices arrive when Deliver is called. A stopped rank neither sends nor receives.
class Ranks {
 public:
  explicit Ranks(int count) : progress_(count), stopped_(count, false), lines(count) {
    for (int rank = 0; rank < count; ++rank) {
      watches_.push_back(std::make_unique<PeerWatch>(
          PeerWatch::Options{.rank = rank,
                             .world_size = count,
                             .stall = {.times = {.report_after = seconds(4)},
                                       .progress = &progress_[rank],
                                       .say = [this, rank](const std::string& line) { lines[rank].push_back(line); }},
                             .send = [this, rank](int peer, NoticeKind kind, const std::string& text) {
                               notices_.push_back({rank, peer, kind, text});
                             }}));
    }
  }

  PeerWatch& operator[](int rank) { return *watches_[rank]; }
  void Enter(int rank, WorkPhase phase, int64_t step) {
    progress_[rank].set_step(step);
    progress_[rank].Enter(phase, now);
  }
  void Stop(int rank) { stopped_[rank] = true; }
  void Continue(int rank) { stopped_[rank] = false; }

  // Advances time in small steps. In each step every running rank does its work.
  void Run(milliseconds duration) {
    for (const auto end = now + duration; now < end; now += milliseconds(50)) {
      for (size_t rank = 0; rank < watches_.size(); ++rank) {
        if (stopped_[rank]) continue;
        watches_[rank]->TellProgress(now);
        watches_[rank]->Look("step 7, bucket 2", now);
      }
      Deliver();
    }
  }

  PeerWatch::Time now{seconds(1000)};

 private:
  struct Notice {
    int from = 0, to = 0;
    NoticeKind kind = NoticeKind::kHere;
    std::string text;
  };

  // Delivers the notices that are waiting, and those that the deliveries cause, until only notices to stopped ranks
  // are left.
  void Deliver() {
    for (size_t i = notices_.size(); i > 0 || Deliverable(); i = i == 0 ? 0 : i - 1) {
      if (notices_.empty()) return;
      const Notice notice = notices_.front();
      notices_.pop_front();
      if (stopped_[notice.to]) {
        notices_.push_back(notice);
      } else {
        watches_[notice.to]->OnNotice(notice.from, notice.kind, notice.text, now);
      }
    }
  }
  bool Deliverable() const {
    for (const Notice& notice : notices_) {
      if (!stopped_[notice.to]) return true;
    }
    return false;
  }

  std::vector<ProgressState> progress_;
  std::vector<bool> stopped_;
  std::vector<std::unique_ptr<PeerWatch>> watches_;
  std::deque<Notice> notices_;

 public:
  std::vector<std::vector<std::string>> lines;
  size_t notices_waiting() const { return notices_.size(); }
};

TEST(PeerWatchTest, ARankThatWaitsForItsOwnGpuIsTheRoot) {
  Ranks ranks(2);
  for (const int rank : {0, 1}) {
    ranks.Enter(rank, WorkPhase::kBackward, 7);
    ranks[rank].BeginWait(ranks.now);
  }
  ranks[1].set_is_busy([] { return true; });
  ranks.Run(milliseconds(4'150));
  ASSERT_EQ(ranks.lines[0].size(), 1u);
  EXPECT_THAT(ranks.lines[0][0], HasSubstr("stuck for 4.0 s (step 7, bucket 2): rank 1 "));
  EXPECT_THAT(ranks.lines[0][0], HasSubstr("backward of step 7"));
}

TEST(PeerWatchTest, AllNameTheRankThatDoesNotAnswerAndWhereItWas) {
  Ranks ranks(5);
  for (int rank = 0; rank < 5; ++rank) ranks.Enter(rank, WorkPhase::kForward, 7);
  ranks.Run(milliseconds(300));
  ranks.Stop(2);
  for (const int rank : {0, 1, 3, 4}) ranks[rank].BeginWait(ranks.now);
  ranks.Run(milliseconds(3'950));
  for (const int rank : {0, 1, 3, 4}) EXPECT_THAT(ranks.lines[rank], IsEmpty());
  ranks.Run(milliseconds(200));
  // Ranks 0 and 4 are not neighbours of rank 2: they learn its phase from ranks 1 and 3, which are.
  for (const int rank : {0, 1, 3, 4}) {
    ASSERT_EQ(ranks.lines[rank].size(), 1u) << rank;
    EXPECT_THAT(ranks.lines[rank][0],
                HasSubstr("stuck for 4.0 s (step 7, bucket 2): rank 2 does not answer: when last"));
    EXPECT_THAT(ranks.lines[rank][0], HasSubstr("it was in forward of step 7"));
  }
  ranks.Run(seconds(30));
  EXPECT_EQ(ranks.lines[0].size(), 1u) << "one line for each stall";
  EXPECT_LE(ranks.notices_waiting(), 10u) << "messages to a stopped process must not pile up";
  ranks.Continue(2);
  ranks.Run(milliseconds(100));
  ranks[0].EndWait(ranks.now);
  ASSERT_EQ(ranks.lines[0].size(), 2u);
  EXPECT_THAT(ranks.lines[0][1], HasSubstr("the job goes on after 34."));
}

TEST(PeerWatchTest, ARankThatLivesAndWorksIsNamedWithItsPhase) {
  Ranks ranks(3);
  ranks.Enter(1, WorkPhase::kReadData, 9);
  for (const int rank : {0, 2}) {
    ranks.Enter(rank, WorkPhase::kForward, 9);
    ranks[rank].BeginWait(ranks.now);
  }
  ranks.Run(milliseconds(4'300));
  for (const int rank : {0, 2}) {
    ASSERT_EQ(ranks.lines[rank].size(), 1u) << rank;
    EXPECT_THAT(ranks.lines[rank][0], HasSubstr("rank 1 answers, and has been reading data for step 9 for 4."));
  }
  EXPECT_THAT(ranks.lines[1], IsEmpty());
}

TEST(PeerWatchTest, ARankThatIsBehindAndWaitsIsNotBlamed) {
  for (const bool waits : {true, false}) {
    Ranks ranks(3);
    ranks.Enter(1, WorkPhase::kForward, 7);
    for (int rank = 0; rank < 3; ++rank) {
      ranks[rank].CountCall();
      if (rank != 1) ranks[rank].CountCall();
      if (rank != 1 || waits) ranks[rank].BeginWait(ranks.now);
    }
    ranks[0].CallRoll(ranks.now);
    EXPECT_FALSE(ranks[0].AllWait());  // as far as it knows
    ranks.Run(milliseconds(100));
    ASSERT_TRUE(ranks[0].RollIsComplete());
    EXPECT_EQ(ranks[0].AllWait(), waits);
    EXPECT_THAT(ranks[0].DescribeMissing(ranks.now),
                HasSubstr(waits ? "all ranks answer, and wait in the exchange: look at the network between them"
                                : "rank 1 lives but is 1 call behind (rank 1 answers, and has been in forward"));
  }
}

TEST(PeerWatchTest, NothingIsSaidWhilePhasesAdvance) {
  Ranks ranks(2);
  ranks[0].BeginWait(ranks.now);
  for (int step = 0; step < 10; ++step) {
    ranks.Enter(1, WorkPhase::kForward, step);
    ranks.Run(seconds(1));
    ranks.Enter(1, WorkPhase::kBackward, step);
    ranks.Run(seconds(1));
  }
  EXPECT_THAT(ranks.lines[0], IsEmpty());
}

TEST(PeerWatchTest, TellsNeighboursAFewTimesASecondWhateverTheyDo) {
  int sent = 0;
  ProgressState progress;
  PeerWatch watch({.rank = 3,
                   .world_size = 64,
                   .stall = {.times = {.report_after = seconds(4)}, .progress = &progress, .say = nullptr},
                   .send = [&](int peer, NoticeKind, const std::string&) {
                     EXPECT_TRUE(peer == 2 || peer == 4) << peer;
                     ++sent;
                   }});
  PeerWatch::Time now{seconds(10)};
  for (int i = 0; i < 1000; ++i, now += milliseconds(1)) {
    progress.set_step(i);
    progress.Enter(WorkPhase::kForward, now);
    watch.TellProgress(now);
  }
  EXPECT_EQ(sent, 2 * 4);  // in a second of 1000 phases: four notices to each neighbour
}

TEST(PeerWatchTest, NamesAFewOfManyRanksThatDoNotAnswer) {
  PeerWatch watch({.rank = 0, .world_size = 1000, .stall = {}, .send = [](int, NoticeKind, const std::string&) {}});
  const PeerWatch::Time now{seconds(10)};
  watch.CallRoll(now);
  EXPECT_THAT(watch.DescribeMissing(now), HasSubstr("ranks 1, 2, 3,"));
  EXPECT_THAT(watch.DescribeMissing(now), HasSubstr(", 16 and 983 more do not answer"));
}

TEST(PeerWatchTest, WhatCannotBeReadIsIgnored) {
  PeerWatch watch({.rank = 0, .world_size = 2, .stall = {}, .send = [](int, NoticeKind, const std::string&) {}});
  const PeerWatch::Time now{seconds(10)};
  watch.CallRoll(now);
  for (const char* const text :
       {"", "x", "1", "1 2 3", "1 99 0 0 0", "1 -1 0 0 0", "-5 1 0 0 0", "1 1 0 0 99999999999999999999"}) {
    watch.OnNotice(1, NoticeKind::kHere, text, now);
    watch.OnNotice(1, NoticeKind::kProgress, text, now);
    EXPECT_FALSE(watch.RollIsComplete()) << text;
  }
  watch.OnNotice(1, NoticeKind::kHere, "0 5 3 1 20 7 1 1 1 1 1 1", now);  // about a rank that does not exist
  EXPECT_TRUE(watch.RollIsComplete());
}

}  // namespace
}  // namespace starring
