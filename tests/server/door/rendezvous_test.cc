#include "server/door/rendezvous.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/star/star_job.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JoinRequest Request(const JobSpec& job, uint64_t worker_id) {
  v1::JoinRequest request;
  request.set_rank(job.rank);
  request.set_worker_id(worker_id);
  request.set_shard(0);
  request.set_shard_count(1);
  request.set_agreement(SerializeAgreement(job));
  request.set_join_deadline_ms(20'000);
  request.set_exchange_deadline_ms(30'000);
  return request;
}

JobSpec Job(int rank, int world_size) {
  JobSpec job = MakeJob(rank, world_size, 200'000, 256 << 10);
  job.agreed_flags = {{"seed", "1"}};
  return job;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Workers' deadlines do not end at one moment, nor with the server's.
TEST(RendezvousTest, WhoHasGivenUpIsNotTheCause) {
  Rendezvous rendezvous(0, 1, "");
  for (const int rank : {0, 1}) EXPECT_TRUE(rendezvous.Join(Request(Job(rank, 4), 10 + rank)).ok());
  rendezvous.Leave(0, 10);
  EXPECT_EQ(rendezvous.DescribeMissing(), "ranks 2, 3 of 4 have not joined");
  for (const int rank : {2, 3}) EXPECT_TRUE(rendezvous.Join(Request(Job(rank, 4), 10 + rank)).ok());
  EXPECT_EQ(rendezvous.DescribeMissing(), "rank 0 of 4 has not joined");
}

TEST(RendezvousTest, IsCompleteWhenAllRanksAreThere) {
  Rendezvous rendezvous(0, 1, "");
  EXPECT_FALSE(rendezvous.has_workers());
  EXPECT_TRUE(rendezvous.Join(Request(Job(1, 2), 11)).ok());
  EXPECT_TRUE(rendezvous.has_workers());
  EXPECT_FALSE(rendezvous.complete());
  EXPECT_EQ(rendezvous.DescribeMissing(), "rank 0 of 2 has not joined");
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 2), 10)).ok());
  EXPECT_TRUE(rendezvous.complete());
  EXPECT_EQ(rendezvous.agreement().world_size, 2);
  EXPECT_EQ(rendezvous.exchange_deadline_ms(), 30'000);
  EXPECT_EQ(rendezvous.join_deadline_ms(), 20'000);
}

// A worker that wants no report may not know the message that asks for its progress, so then no worker is asked.
TEST(RendezvousTest, AStallIsReportedAfterTheShortestTimeUnlessAWorkerWantsNone) {
  const auto agreed = [](int64_t first, int64_t second) {
    Rendezvous rendezvous(0, 1, "");
    v1::JoinRequest request = Request(Job(0, 2), 10);
    request.set_stall_report_ms(first);
    EXPECT_TRUE(rendezvous.Join(request).ok());
    request = Request(Job(1, 2), 11);
    request.set_stall_report_ms(second);
    EXPECT_TRUE(rendezvous.Join(request).ok());
    return rendezvous.stall_report_ms();
  };
  EXPECT_EQ(agreed(4000, 1000), 1000);
  EXPECT_EQ(agreed(1000, 4000), 1000);
  EXPECT_EQ(agreed(0, 4000), 0);
  EXPECT_EQ(agreed(4000, 0), 0);
  EXPECT_EQ(agreed(-5, 4000), 0);
}

TEST(RendezvousTest, ARepeatedJoinCountsOnce) {
  Rendezvous rendezvous(0, 1, "");
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 2), 10)).ok());
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 2), 10)).ok());
  EXPECT_FALSE(rendezvous.complete());
  EXPECT_TRUE(rendezvous.Join(Request(Job(1, 2), 11)).ok());
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 2), 10)).ok());  // its answer was lost
}

// A worker of attempt 1 still looks for its servers, at the addresses where attempt 2 has its own.
TEST(RendezvousTest, AWorkerOfAnotherAttemptDoesNotFoundTheJob) {
  Rendezvous rendezvous(0, 1, "job-2");
  v1::JoinRequest straggler = Request(Job(0, 2), 10);
  straggler.set_run_id("job-1");
  const absl::Status status = rendezvous.Join(straggler);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr("\"job-1\""), HasSubstr("\"job-2\"")));
  EXPECT_FALSE(rendezvous.has_workers());
  v1::JoinRequest request = Request(Job(0, 2), 11);
  request.set_run_id("job-2");
  EXPECT_TRUE(rendezvous.Join(request).ok());
}

TEST(RendezvousTest, RefusesASecondProcessOfARank) {
  Rendezvous rendezvous(0, 1, "");
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 2), 10), "10.0.0.1:1").ok());
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 2), 10), "10.0.0.1:2").ok());  // by a new connection
  const absl::Status taken = rendezvous.Join(Request(Job(0, 2), 99), "10.0.0.9:9");
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Message(taken), "another process has joined as rank 0, from 10.0.0.1:2: give every worker its own --rank");
  EXPECT_TRUE(rendezvous.Join(Request(Job(1, 2), 11)).ok());
  // In a complete job the rank does not become free any more, so another code tells the worker not to try again.
  EXPECT_EQ(rendezvous.Join(Request(Job(0, 2), 99)).code(), absl::StatusCode::kFailedPrecondition);
}

// As a pod that is started again with --resume, while the others wait for the one before.
TEST(RendezvousTest, ARestartedWorkerIsNotToldThatItsCheckpointIsWrong) {
  Rendezvous rendezvous(0, 1, "");
  for (const int rank : {0, 1}) EXPECT_TRUE(rendezvous.Join(Request(Job(rank, 2), 10 + rank)).ok());
  JobSpec resumed = Job(1, 2);
  resumed.first_step = 40;
  const absl::Status status = rendezvous.Join(Request(resumed, 99));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Message(status), HasSubstr("this server's job has begun, with another process as rank 1"));
  // The member itself may not come back with other flags.
  EXPECT_EQ(rendezvous.Join(Request(resumed, 11)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RendezvousTest, RefusesAnotherRun) {
  Rendezvous rendezvous(0, 1, "");
  v1::JoinRequest first = Request(Job(0, 2), 10);
  first.set_run_id("monday");
  EXPECT_TRUE(rendezvous.Join(first).ok());
  v1::JoinRequest second = Request(Job(1, 2), 11);
  second.set_run_id("tuesday");
  const absl::Status status = rendezvous.Join(second);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("monday"), HasSubstr("tuesday")));
}

TEST(RendezvousTest, RefusesAWorkerThatMistakesTheShard) {
  Rendezvous rendezvous(1, 2, "");
  v1::JoinRequest request = Request(Job(0, 1), 10);
  request.set_shard(0);
  request.set_shard_count(2);
  const absl::Status status = rendezvous.Join(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("shard 1 of 2"), HasSubstr("shard 0 of 2"), HasSubstr("--servers")));
  request.set_shard(1);
  request.set_shard_count(3);
  EXPECT_THAT(Message(rendezvous.Join(request)), HasSubstr("shard 1 of 3"));
}

TEST(RendezvousTest, RefusesWhatIsNoJob) {
  Rendezvous rendezvous(0, 1, "");
  v1::JoinRequest request = Request(Job(0, 2), 10);
  request.set_agreement("no agreement");
  EXPECT_EQ(rendezvous.Join(request).code(), absl::StatusCode::kInvalidArgument);
  request = Request(Job(0, 2), 10);
  for (const int rank : {-1, 2}) {
    request.set_rank(rank);
    EXPECT_EQ(rendezvous.Join(request).code(), absl::StatusCode::kInvalidArgument) << rank;
  }
  EXPECT_FALSE(rendezvous.has_workers());
  request.set_rank(0);
  EXPECT_TRUE(rendezvous.Join(request).ok());
  request.set_rank(2);
  EXPECT_EQ(rendezvous.Join(request).code(), absl::StatusCode::kInvalidArgument);
}

// Each case changes one field of rank 1's job.
TEST(RendezvousTest, RefusesEveryFieldThatDiffersWithBothValues) {
  struct Case {
    const char* name;
    void (*change)(JobSpec*);
    std::vector<std::string> expected;
  };
  const Case cases[] = {
      {"seed", [](JobSpec* job) { job->agreed_flags[0].second = "2"; }, {"--seed=2", "--seed=1"}},
      {"world size", [](JobSpec* job) { *job = Job(1, 3); }, {"3", "2"}},
      {"layout",
       [](JobSpec* job) { job->layout = *Layout::Create({{.name = "other", .dims = {100'000}}}); },
       {"layout"}},
      {"first step", [](JobSpec* job) { job->first_step = 7; }, {"7", "0"}},
      {"momentum", [](JobSpec* job) { job->optimizer.momentum = 0.5f; }, {"momentum=0.5"}},
      {"optimizer", [](JobSpec* job) { job->optimizer.kind = OptimizerKind::kAdamW; }, {"ADAMW", "SGD"}},
      {"rate", [](JobSpec* job) { job->schedule.base = 0.25; }, {"0.25", "0.125"}},
      {"buckets", [](JobSpec* job) { job->buckets = MakeJob(1, 2, 200'000, 512 << 10).buckets; }, {"bucket_bytes"}},
  };
  for (const Case& c : cases) {
    Rendezvous rendezvous(0, 1, "");
    EXPECT_TRUE(rendezvous.Join(Request(Job(0, 2), 10)).ok());
    JobSpec other = Job(1, 2);
    c.change(&other);
    const absl::Status status = rendezvous.Join(Request(other, 11));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 1"), HasSubstr("rank 0"))) << c.name;
    for (const std::string& value : c.expected) EXPECT_THAT(Message(status), HasSubstr(value)) << c.name;
    EXPECT_THAT(rendezvous.DescribeMissing(), HasSubstr("rank 1 was refused")) << c.name;
    EXPECT_TRUE(rendezvous.Join(Request(Job(1, 2), 12)).ok()) << c.name;  // the corrected worker
  }
}

TEST(RendezvousTest, AWorkerThatLeftCanComeBackWithOtherFlags) {
  Rendezvous rendezvous(0, 1, "");
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 2), 10)).ok());
  rendezvous.Leave(0, 99);  // another process than the one that joined
  EXPECT_TRUE(rendezvous.Joined(0));
  rendezvous.Leave(0, 10);
  EXPECT_FALSE(rendezvous.has_workers());
  EXPECT_TRUE(rendezvous.Join(Request(Job(1, 3), 12)).ok());
  EXPECT_EQ(rendezvous.agreement().world_size, 3);
}

TEST(RendezvousTest, NoWorkerLeavesAJobThatHasBegun) {
  Rendezvous rendezvous(0, 1, "");
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 1), 10)).ok());
  rendezvous.Leave(0, 10);
  EXPECT_TRUE(rendezvous.complete());
  EXPECT_TRUE(rendezvous.Joined(0));
}

TEST(RendezvousTest, NamesAFewOfManyMissingRanks) {
  Rendezvous rendezvous(0, 1, "");
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 1000), 10)).ok());
  EXPECT_THAT(rendezvous.DescribeMissing(), HasSubstr("ranks 1, 2, 3"));
  EXPECT_THAT(rendezvous.DescribeMissing(), HasSubstr("16 and 983 more of 1000 have not joined"));
}

TEST(RendezvousTest, AsksWhetherAJobIsAffordableBeforeItIsTaken) {
  std::vector<int> asked;
  Rendezvous rendezvous(0, 1, "", [&](const Agreement& agreement, int lanes) {
    asked.push_back(lanes);
    return agreement.world_size * lanes <= 8 ? absl::OkStatus() : absl::ResourceExhaustedError("too many");
  });
  v1::JoinRequest request = Request(Job(0, 16), 10);
  EXPECT_EQ(rendezvous.Join(request).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(rendezvous.has_workers());
  request = Request(Job(0, 2), 10);
  request.set_lanes(4);
  EXPECT_TRUE(rendezvous.Join(request).ok());
  request = Request(Job(1, 2), 11);
  request.set_lanes(5);  // more than the first worker's
  EXPECT_EQ(rendezvous.Join(request).code(), absl::StatusCode::kResourceExhausted);
  request.set_lanes(3);
  EXPECT_TRUE(rendezvous.Join(request).ok());
  EXPECT_EQ(rendezvous.lanes(), 4);
  EXPECT_EQ(asked, (std::vector<int>{1, 4, 5}));  // not for 3 lanes: the job has the memory for 4
}

TEST(RendezvousTest, KnowsWhoHasNeverJoined) {
  Rendezvous rendezvous(0, 1, "");
  EXPECT_THAT(rendezvous.NeverJoined(), IsEmpty());
  EXPECT_TRUE(rendezvous.Join(Request(Job(1, 3), 11)).ok());
  EXPECT_THAT(rendezvous.NeverJoined(), ElementsAre(0, 2));
  EXPECT_TRUE(rendezvous.Join(Request(Job(0, 3), 10)).ok());
  // It has waited for the others in vain, and is not the one that was missing.
  rendezvous.Leave(1, 11);
  EXPECT_FALSE(rendezvous.Joined(1));
  EXPECT_THAT(rendezvous.NeverJoined(), ElementsAre(2));
}

TEST(ShardMemoryTest, HasRoomForSoManyContributions) {
  for (const int workers : {1, 4, 5}) {
    const auto agreement = ParseAgreement(SerializeAgreement(MakeJob(0, workers, 1 << 20, 1 << 20)));
    ASSERT_TRUE(agreement.ok());
    const int64_t needed = ShardMemoryNeeded(*agreement, 1, 2, 8);
    EXPECT_EQ(ShardContributionsMax(*agreement, 1, 2, needed, 8), workers);
    EXPECT_EQ(ShardContributionsMax(*agreement, 1, 2, needed - 1, 8), workers - 1);
    EXPECT_EQ(ShardContributionsMax(*agreement, 1, 2, 1000, 8), 0);
  }
}

TEST(ShardMemoryTest, CountsBuffersStateAndWhatWorkersWaitWith) {
  const JobSpec spec = MakeJob(0, 4, 1 << 20, 1 << 20);
  const auto agreement = ParseAgreement(SerializeAgreement(spec));
  ASSERT_TRUE(agreement.ok());
  // Three buffers and a shared one, momentum, and four contributions; a little for bookkeeping.
  const int64_t slice = 4 * (1 << 20) / 2;
  const int64_t needed = ShardMemoryNeeded(*agreement, 0, 2);
  EXPECT_GE(needed, slice * (3 + 1 + 1 + 4));
  EXPECT_LE(needed, slice * (3 + 1 + 1 + 4) + 10'000);
  EXPECT_TRUE(CheckShardMemory(*agreement, 0, 2, needed).ok());
  const absl::Status refused = CheckShardMemory(*agreement, 0, 2, needed - 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("needs 0.019 GB"), HasSubstr("--memory_limit_gb")));
  // Snapshots have the parameters and the momentum.
  const int64_t with_snapshots = needed + 8 * 2 * slice;
  EXPECT_EQ(ShardMemoryNeeded(*agreement, 0, 2, 8), with_snapshots);
  EXPECT_TRUE(CheckShardMemory(*agreement, 0, 2, with_snapshots, 8).ok());
  EXPECT_EQ(CheckShardMemory(*agreement, 0, 2, with_snapshots - 1, 8).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace starring
