#include "worker/check/topology_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/time/clock.h"
#include "common/flags/command_line.h"
#include "worker/check/meeting.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Rank 0 has decided that MPI is tried, and cannot be told afterwards what came of it.
class LostBoard final : public NoteBoard {
 public:
  absl::Status Put(CheckStage stage, const std::string&) override {
    return stage == CheckStage::kMpiReport ? absl::UnavailableError("rank 0 is gone") : absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(int, CheckStage stage) override {
    return stage == CheckStage::kGo ? std::optional<std::string>("1") : std::nullopt;
  }
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

TEST_F(TopologyCheckTest, MpiIsStuckAlsoIfRankZeroCannotBeTold) {
  const CheckParts parts = PartsOf(1);
  LostBoard board;
  Meeting meeting({.board = &board, .rank = 1, .world_size = 2, .begin = absl::Now(), .rest = absl::SleepFor});
  const CheckOutcome outcome = Conclude(parts, EmptyFindings(parts, CheckFindings::Topology::kRing), ReportOf(1),
                                        meeting, [](v1::ProcessReport& report) { report.set_mpi_hangs(true); });
  EXPECT_TRUE(outcome.mpi_is_stuck);
  EXPECT_EQ(outcome.exit_code, kExitPeerMissing);
  EXPECT_THAT(printed_, HasSubstr("not ready: rank 0 did not answer to w1"));
}

TEST_F(TopologyCheckTest, RankZeroAloneDoesNotBlameItself) {
  const CheckParts parts = PartsOf(0);
  for (const auto topology : {CheckFindings::Topology::kStar, CheckFindings::Topology::kRing}) {
    printed_.clear();
    EXPECT_EQ(ConcludeAlone(parts, EmptyFindings(parts, topology), ReportOf(0)).exit_code, kExitPeerMissing);
    EXPECT_THAT(printed_, HasSubstr("not ready: w0 cannot leave notes for the other workers"));
    EXPECT_THAT(printed_, Not(HasSubstr("did not answer")));
  }
}

}  // namespace
}  // namespace starring
