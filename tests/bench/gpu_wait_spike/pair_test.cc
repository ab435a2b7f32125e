#include "bench/gpu_wait_spike/pair.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring::gpu_wait {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPlenty{20'000}, kSoon{100};

std::string TextOf(const PairResult& result) { return std::string(result.status.message()); }

TEST(Pair, BothSwapMessagesAndLeaveReports) {
  const PairResult result = RunPair(
      [](Peer& peer) {
        for (int round = 0; round < 100; ++round) {
          const absl::StatusOr<int> theirs = peer.Swap(10 * round + peer.index());
          if (!theirs.ok()) return theirs.status();
          if (*theirs != 10 * round + 1 - peer.index()) return absl::DataLossError("another message");
        }
        for (int i = 0; i < 3; ++i) peer.AddSample(1, i + 100 * peer.index());
        peer.Note(absl::StrCat("note of ", peer.index()));
        peer.Note("and more");
        return peer.Meet();
      },
      kPlenty);
  EXPECT_EQ(result.status, absl::OkStatus());
  EXPECT_THAT(result.notes, ElementsAre("note of 0", "and more", "note of 1", "and more"));
  EXPECT_THAT(result.series[0], IsEmpty());
  EXPECT_THAT(result.series[1], ElementsAre(0, 1, 2)) << "of process 0";
}

TEST(Pair, TextAndSamplesHaveLimits) {
  const PairResult result = RunPair(
      [](Peer& peer) {
        peer.Note(std::string(2 * kTextBytesMax, 'x'));
        for (int i = 0; i < kSamplesMax + 1; ++i) peer.AddSample(0, i);
        return absl::InternalError(std::string(2 * kTextBytesMax, 'y'));
      },
      kPlenty);
  EXPECT_EQ(result.notes[0].size(), kTextBytesMax - 1);
  EXPECT_EQ(result.series[0].size(), static_cast<size_t>(kSamplesMax));
  EXPECT_THAT(TextOf(result), HasSubstr("yyy"));
}

TEST(Pair, TheOneThatFailsIsNamedAndTheOtherEnds) {
  for (int culprit = 0; culprit < 2; ++culprit) {
    const PairResult result = RunPair(
        [culprit](Peer& peer) {
          if (peer.index() == culprit) return absl::InternalError("cudaX: why");
          const absl::Status met = peer.Meet();
          peer.Note(std::string(met.message()));
          return met;
        },
        kPlenty);
    EXPECT_THAT(result.notes, ElementsAre("the other process has failed"));
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(TextOf(result), absl::StrCat("process ", culprit, ": cudaX: why"));
  }
}

TEST(Pair, TheOneThatDiesIsNamedAndTheOtherEnds) {
  const auto begin = Clock::now();
  const PairResult result = RunPair(
      [](Peer& peer) {
        if (peer.index() == 1) kill(getpid(), SIGKILL);
        return peer.Meet();
      },
      kPlenty);
  EXPECT_EQ(TextOf(result), "process 1 was ended by signal 9");
  EXPECT_LT(Clock::now() - begin, kPlenty / 2);
}

TEST(Pair, OneThatWaitsForTheOtherEndsAtTheDeadline) {
  const PairResult result = RunPair(
      [](Peer& peer) {
        // Process 1 does not come, but looks whether it is wanted.
        while (peer.index() == 1 && peer.StillWanted().ok()) usleep(1000);
        peer.Note(absl::StrCat(peer.index()));
        const absl::Status met = peer.Meet();
        peer.Note("and was told");
        return met;
      },
      kSoon);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(TextOf(result), "no end after 100 ms");
  EXPECT_THAT(result.notes, ElementsAre("0", "and was told", "1", "and was told")) << "neither was killed";
}

TEST(Pair, OneThatNeverLooksIsKilled) {
  const auto begin = Clock::now();
  const PairResult result = RunPair(
      [](Peer& peer) {
        while (peer.index() == 1) pause();
        return peer.Meet();
      },
      kSoon);
  EXPECT_EQ(TextOf(result), "no end after 100 ms");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(Pair, BothDieWithTheirParent) {
  // Orphans become children of this process, which can then wait for them.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    RunPair(
        [&](Peer&) -> absl::Status {
          const pid_t pid = getpid();
          if (write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
          while (true) pause();
        },
        kPlenty);
    _exit(0);
  }
  pid_t pids[2];
  for (pid_t& pid : pids) ASSERT_EQ(read(ends[0], &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
  const auto begin = Clock::now();
  kill(parent, SIGKILL);
  for (const pid_t pid : {parent, pids[0], pids[1]}) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  EXPECT_LT(Clock::now() - begin, kPlenty / 2) << "before the deadline of the pair";
}

}  // namespace
}  // namespace starring::gpu_wait
