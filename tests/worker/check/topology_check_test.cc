#include "worker/check/topology_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/flags/command_line.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "worker/check/meeting.h"

namespace starring {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A meeting that this rank no longer reaches.
class LostMeeting final : public Meeting {
 public:
  explicit LostMeeting(int rank) : rank_(rank) {}
  absl::StatusOr<Reports> Gather(const v1::ProcessReport&) override { return AloneError(rank_); }
  absl::Status Tell(int&) override { return AloneError(rank_); }

 private:
  const int rank_;
};

// One of two workers, which has found nothing wrong.
class TopologyCheckTest : public testing::Test {
 protected:
  CheckParts PartsOf(int rank) {
    options_.rank = rank;
    options_.world_size = 2;
    return {.options = &options_, .print = [this](const std::string& text) { printed_ += text; }};
  }
  static v1::ProcessReport ReportOf(int rank) {
    v1::ProcessReport report;
    report.mutable_facts()->set_role(v1::ProcessFacts::WORKER);
    report.mutable_facts()->set_number(rank);
    return report;
  }

  WorkerOptions options_;
  std::string printed_;
};

TEST_F(TopologyCheckTest, AWorkerThatDoesNotReachRankZeroSaysSo) {
  const CheckParts parts = PartsOf(1);
  LostMeeting meeting(1);
  const CheckOutcome outcome = Conclude(parts, EmptyFindings(parts), ReportOf(1), meeting, Round::kMpi);
  EXPECT_EQ(outcome.exit_code, kExitPeerMissing);
  EXPECT_THAT(printed_, HasSubstr("not ready: rank 0 did not answer to w1"));
}

TEST_F(TopologyCheckTest, RankZeroAloneDoesNotBlameItself) {
  const CheckParts parts = PartsOf(0);
  LostMeeting meeting(0);
  EXPECT_EQ(Conclude(parts, EmptyFindings(parts), ReportOf(0), meeting).exit_code, kExitPeerMissing);
  EXPECT_THAT(printed_, HasSubstr("not ready: w0 cannot leave notes for the other workers"));
  EXPECT_THAT(printed_, Not(HasSubstr("did not answer")));
}

// A meeting to which only rank 0 has come.
class EmptyMeeting final : public Meeting {
 public:
  absl::StatusOr<Reports> Gather(const v1::ProcessReport& own) override { return Reports{own}; }
  absl::Status Tell(int&) override { return absl::OkStatus(); }
};

TEST_F(TopologyCheckTest, AMissingWorkerIsNamed) {
  const CheckParts parts = PartsOf(0);
  EmptyMeeting meeting;
  EXPECT_EQ(Conclude(parts, EmptyFindings(parts), ReportOf(0), meeting).exit_code, kExitPeerMissing);
  EXPECT_THAT(printed_, HasSubstr("not ready: w1 has not reported within 20s"));
}

// One rank of a job over TCP, as `worker --check` runs it.
struct TcpRank {
  WorkerOptions options;
  TcpRendezvousOptions rendezvous;
  CheckOutcome outcome;
  std::string printed;

  void Check() {
    v1::ProcessReport report;
    report.mutable_facts()->set_role(v1::ProcessFacts::WORKER);
    report.mutable_facts()->set_number(options.rank);
    report.mutable_facts()->set_host("here");
    const CheckParts parts = {
        .options = &options, .rendezvous = &rendezvous, .print = [this](const std::string& text) { printed += text; }};
    outcome = CheckMesh(parts, std::move(report));
  }
};

// Rank 0 listens at a free port.
std::vector<TcpRank> TcpRanks(int world_size) {
  absl::StatusOr<TcpListener> listener = TcpListener::Listen("127.0.0.1:0");
  CHECK_OK(listener);
  std::vector<TcpRank> ranks(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    ranks[rank].options.sync = Sync::kRing;
    ranks[rank].options.transport = TransportKind::kTcp;
    ranks[rank].options.rank = ranks[rank].rendezvous.rank = rank;
    ranks[rank].options.world_size = ranks[rank].rendezvous.world_size = world_size;
    ranks[rank].rendezvous.rendezvous = listener->address();
  }
  ranks[0].rendezvous.listener = *std::move(listener);
  return ranks;
}

TEST(TcpCheck, RankZeroPrintsTheConnectionsOfAllRanks) {
  for (const int world_size : {2, 3}) {
    std::vector<TcpRank> ranks = TcpRanks(world_size);
    std::vector<std::thread> threads;
    for (TcpRank& rank : ranks) threads.emplace_back([&rank] { rank.Check(); });
    for (std::thread& thread : threads) thread.join();
    for (const TcpRank& rank : ranks) EXPECT_EQ(rank.outcome.exit_code, kExitOk) << rank.printed;
    EXPECT_THAT(ranks[0].printed, HasSubstr(absl::StrCat("ready: ", world_size, " workers reach each other")));
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_THAT(ranks[0].printed, ContainsRegex(absl::StrCat("w", rank, " +w", (rank + 1) % world_size,
                                                               " +tcp +here .*reachable .* ms .*bit/s")));
    }
    for (int rank = 1; rank < world_size; ++rank) {
      EXPECT_THAT(ranks[rank].printed, IsEmpty());
    }
  }
}

TEST(TcpCheck, NamesARankThatIsMissing) {
  std::vector<TcpRank> ranks = TcpRanks(2);
  ranks[0].options.join_deadline = absl::Milliseconds(200);
  ranks[0].Check();
  EXPECT_EQ(ranks[0].outcome.exit_code, kExitPeerMissing);
  EXPECT_THAT(ranks[0].printed, HasSubstr("not ready: rank 1 of 2 has not joined"));
}

TEST(TcpCheck, TellsBothOfAnotherSecret) {
  std::vector<TcpRank> ranks = TcpRanks(2);
  ranks[0].options.join_deadline = absl::Seconds(3);  // for rank 1 to come, on a busy machine
  ranks[1].options.join_deadline = absl::Seconds(1);
  ranks[0].rendezvous.token = std::string(32, 'a');
  ranks[1].rendezvous.token = std::string(32, 'b');
  std::thread other([&] { ranks[1].Check(); });
  ranks[0].Check();
  other.join();
  EXPECT_EQ(ranks[1].outcome.exit_code, kExitRefused);
  EXPECT_THAT(ranks[1].printed, HasSubstr("another job secret"));
  EXPECT_EQ(ranks[0].outcome.exit_code, kExitPeerMissing);
  EXPECT_THAT(ranks[0].printed, HasSubstr("the last connection that was refused"));
}

TEST(TcpCheck, OneRankNeedsNoOther) {
  std::vector<TcpRank> ranks = TcpRanks(1);
  ranks[0].Check();
  EXPECT_EQ(ranks[0].outcome.exit_code, kExitOk);
  EXPECT_THAT(ranks[0].printed, HasSubstr("ready: one worker, which needs no other"));
}

}  // namespace
}  // namespace starring
