// Workers and servers of one world, each in a thread: real exchanges and real servers over a network in memory, on
// which messages are late and come in any order.
#include "server/shard/shard_rank.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/status.h"
#include "common/transport/check_conversation.h"
#include "common/transport/collectives.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/example_training.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/exchange/peer/server_ranks.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Outcome = ExampleOutcome;

constexpr PeerExchange::HostSharing kSharings[] = {PeerExchange::HostSharing::kNever,
                                                   PeerExchange::HostSharing::kIfPossible};

struct Training {
  ExampleJob job;
  int server_count = 1;
  PeerExchange::HostSharing sharing = PeerExchange::HostSharing::kNever;
  int64_t first_step = 0;
  int64_t step_count = 3;
  std::vector<float> start;               // rank 0's parameters; empty: the job's
  std::vector<std::vector<float>> state;  // rank 0's optimizer state; empty: zeros
  std::function<void(int rank, JobSpec& spec)> change_spec = [](int, JobSpec&) {};
  std::function<void(int shard, ShardRank::Options& options)> change_server = [](int, ShardRank::Options&) {};
  // Called before each step; an error ends the rank's training by Abort.
  std::function<absl::Status(int rank, int64_t step)> before_step = [](int, int64_t) { return absl::OkStatus(); };
  std::map<int64_t, int64_t> bucket_bytes_from;  // by step: from that one on, buckets of another size
};

struct Outcomes {
  std::vector<Outcome> workers;
  std::vector<absl::Status> servers;

  // The statuses of all processes.
  std::vector<absl::Status> statuses() const {
    std::vector<absl::Status> all = servers;
    for (const Outcome& worker : workers) all.push_back(worker.status);
    return all;
  }
};

ExampleTraining OfWorkers(const Training& training) {
  ExampleJob job = training.job;
  job.has_servers = true;
  return {.job = job,
          .step_count = training.step_count,
          .first_step = training.first_step,
          .start = training.start,
          .state = training.state,
          .change_spec = training.change_spec,
          .before_step = training.before_step,
          .bucket_bytes_from = training.bucket_bytes_from};
}

Outcomes RunAll(const Training& training) {
  const int worker_count = training.job.world_size;
  InMemoryNetwork network(worker_count + training.server_count, 17);
  Outcomes outcomes;
  outcomes.workers.resize(worker_count);
  outcomes.servers.resize(training.server_count);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < worker_count; ++rank) {
    threads.emplace_back([&, rank] {
      Outcome& outcome = outcomes.workers[rank];
      PeerExchange exchange(network.CreateTransport(rank), {.algorithm = PeerExchange::Algorithm::kDedicated,
                                                            .sharing = training.sharing,
                                                            .server_count = training.server_count});
      RunExampleTraining(OfWorkers(training), exchange, rank, outcome);
    });
  }
  for (int shard = 0; shard < training.server_count; ++shard) {
    threads.emplace_back([&, shard] {
      ShardRank::Options options = {.shard = shard, .shard_count = training.server_count};
      training.change_server(shard, options);
      ShardRank server(network.CreateTransport(worker_count + shard), std::move(options));
      outcomes.servers[shard] = server.Run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// By messages, and in shared memory.
void ExpectReference(Training training) {
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = training.job.Reference(training.first_step + training.step_count, &state);
  for (const bool shares : {false, true}) {
    SCOPED_TRACE(shares ? "in shared memory" : "by messages");
    if (shares) training.sharing = PeerExchange::HostSharing::kIfPossible;
    const Outcomes outcomes = RunAll(training);
    for (const absl::Status& status : outcomes.statuses()) ASSERT_EQ(status, absl::OkStatus());
    for (const Outcome& worker : outcomes.workers) {
      EXPECT_EQ(worker.parameters, expected);
      EXPECT_EQ(worker.counters.shared_memory, shares);
    }
    EXPECT_EQ(outcomes.workers[0].state, state);
  }
}

using WorkersAndServers = std::tuple<int, int>;

class ShardRankBits : public testing::TestWithParam<WorkersAndServers> {};

INSTANTIATE_TEST_SUITE_P(Worlds, ShardRankBits,
                         testing::Combine(testing::Values(1, 2, 3, 5), testing::Values(1, 2, 3)));

TEST_P(ShardRankBits, AreThoseOfTheReference) {
  const auto& [world_size, server_count] = GetParam();
  const int64_t block = ReductionBlockElements(world_size);
  // The short vector has one line, which one server owns.
  for (const int64_t element_count : {int64_t{16}, 9 * block / 8}) {
    for (const SumOrder order : {SumOrder::kChain, SumOrder::kTree}) {
      SCOPED_TRACE(testing::Message() << element_count << " elements, order " << static_cast<int>(order));
      ExpectReference(
          {.job = {.element_count = element_count, .bucket_bytes = 1, .world_size = world_size, .sum_order = order},
           .server_count = server_count});
    }
  }
}

// A worker's contributions of one bucket arrive in the order of its share.
TEST_P(ShardRankBits, AreThoseOfTheTreeOfMicroBatches) {
  const auto& [world_size, server_count] = GetParam();
  for (const int64_t element_count : {int64_t{16}, 9 * ReductionBlockElements(world_size) / 8}) {
    SCOPED_TRACE(testing::Message() << element_count << " elements");
    ExpectReference({.job = {.element_count = element_count,
                             .bucket_bytes = 1,
                             .world_size = world_size,
                             .sum_order = SumOrder::kTree,
                             .micro_batches = 8},
                     .server_count = server_count});
  }
}

TEST(ShardRankTest, GoesOnFromRank0sParametersAndState) {
  Training training = {.job = {.element_count = 200'000,
                               .bucket_bytes = 1,
                               .world_size = 2,
                               .optimizer = {.kind = OptimizerKind::kAdamW}},
                       .server_count = 2,
                       .first_step = 2,
                       .step_count = 2};
  training.start = training.job.Reference(2, &training.state);
  ExpectReference(training);
}

TEST(ShardRankTest, ASliceOfSeveralPiecesArrivesWhole) {
  const Training training = {
      .job = {.element_count = kShardPieceElements + 4096, .bucket_bytes = int64_t{64} << 20, .world_size = 1},
      .step_count = 1};
  ExpectReference(training);
}

TEST(ShardRankTest, RefusesAWorkerThatDiffersOnAllProcesses) {
  Training training = {.job = {.element_count = 64, .bucket_bytes = 1, .world_size = 3}, .server_count = 2};
  training.change_spec = [](int rank, JobSpec& spec) {
    if (rank == 2) spec.agreed_flags = {{"seed", "2"}};
  };
  for (const absl::Status& status : RunAll(training).statuses()) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 has --seed=2, rank 0 has --seed=1"));
  }
}

TEST(ShardRankTest, RefusesAJobThatDoesNotFitItsMemory) {
  Training training = {.job = {.element_count = 200'000, .bucket_bytes = 1, .world_size = 2}, .server_count = 2};
  training.change_server = [](int shard, ShardRank::Options& options) {
    options.memory_bytes_max = shard == 1 ? 100'000 : 0;
  };
  for (const absl::Status& status : RunAll(training).statuses()) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("server 1: shard 1 of 2 needs"), HasSubstr("start more servers")));
  }
}

TEST(ShardRankTest, ServersOnOneMachineDivideItsFreeMemory) {
  Training training = {.job = {.element_count = 200'000, .bucket_bytes = 1, .world_size = 2}, .server_count = 2};
  training.change_server = [](int, ShardRank::Options& options) {
    options.available_memory = [] { return int64_t{2'000'000}; };
    options.servers_here = [] { return 2; };
  };
  for (const absl::Status& status : RunAll(training).statuses()) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("this server may use 0.001 GB"));
  }
}

TEST(ShardRankTest, AnAbortReachesAllWithItsReason) {
  for (const PeerExchange::HostSharing sharing : kSharings) {
    Training training = {
        .job = {.element_count = 200'000, .bucket_bytes = 1, .world_size = 3}, .server_count = 2, .sharing = sharing};
    training.before_step = [](int rank, int64_t step) {
      return rank == 2 && step == 1 ? absl::InternalError("gradient of fc1.weight is NaN") : absl::OkStatus();
    };
    const Outcomes outcomes = RunAll(training);
    for (const absl::Status& status : outcomes.servers) {
      EXPECT_TRUE(absl::IsInternal(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 gave up: gradient of fc1.weight is NaN"));
    }
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(std::string(outcomes.workers[rank].status.message()), HasSubstr("gradient of fc1.weight is NaN"));
    }
  }
}

// One process on another host is enough.
TEST(ShardRankTest, WhereMemoryCannotBeSharedTheyAreMessages) {
  const Training training = {.job = {.element_count = 200'000, .bucket_bytes = 1, .world_size = 2},
                             .server_count = 2,
                             .sharing = PeerExchange::HostSharing::kIfPossible,
                             .change_server = [](int shard, ShardRank::Options& options) {
                               if (shard == 1) options.boot_id = "another host's";
                             }};
  const Outcomes outcomes = RunAll(training);
  for (const absl::Status& status : outcomes.statuses()) EXPECT_EQ(status, absl::OkStatus());
  for (const Outcome& worker : outcomes.workers) {
    EXPECT_FALSE(worker.counters.shared_memory);
    EXPECT_EQ(worker.parameters, training.job.Reference(training.step_count));
  }
}

TEST(ShardRankTest, ServersKeepToTheBucketsOfTheStart) {
  const Training training = {.job = {.element_count = 200'000, .bucket_bytes = 1, .world_size = 2},
                             .bucket_bytes_from = {{1, 1 << 20}}};
  for (const Outcome& worker : RunAll(training).workers) {
    EXPECT_TRUE(absl::IsUnimplemented(worker.status)) << worker.status;
    EXPECT_THAT(std::string(worker.status.message()), HasSubstr("give --bucket_bytes a number"));
  }
}

// It lives, but contributes much later than the deadline allows.
TEST(ShardRankTest, AWorkerThatIsLateIsNamed) {
  Training training = {.job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2}};
  training.change_spec = [](int, JobSpec& spec) { spec.exchange_deadline = absl::Milliseconds(400); };
  training.before_step = [](int rank, int64_t step) {
    if (rank == 1 && step == 1) std::this_thread::sleep_for(std::chrono::seconds(4));
    return absl::OkStatus();
  };
  const Outcomes outcomes = RunAll(training);
  for (const absl::Status& status : outcomes.statuses()) EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(outcomes.servers[0].message()), HasSubstr("rank 1"));
  EXPECT_THAT(std::string(outcomes.workers[0].status.message()), HasSubstr("rank 1"));
}

// Runs a worker's part of a check in each of two processes, and two servers.
std::vector<absl::Status> RunCheckAtServers(const std::function<absl::Status(MessagePump& pump)>& part) {
  InMemoryNetwork network(4, 3);
  std::vector<absl::Status> servers(2);
  std::vector<std::thread> threads;
  for (int shard = 0; shard < 2; ++shard) {
    threads.emplace_back([&, shard] {
      ShardRank server(network.CreateTransport(2 + shard), {.shard = shard, .shard_count = 2});
      servers[shard] = server.Run();
      EXPECT_TRUE(server.was_check() || !servers[shard].ok());
    });
  }
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Transport> transport = network.CreateTransport(rank);
      MessagePump pump(transport.get(), {}, 2);
      EXPECT_EQ(part(pump), absl::OkStatus());
      transport.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return servers;
}

TEST(ShardRank, TakesPartInACheckOfItsWorkers) {
  std::vector<v1::ProcessReport> reports;
  const auto check = [&reports](MessagePump& pump) {
    v1::ProcessReport report;
    RETURN_IF_ERROR(InviteServers(pump));
    RETURN_IF_ERROR(TestLinks(pump, {.bandwidth_seconds = 1e-3}, report));
    ASSIGN_OR_RETURN(std::vector<v1::ProcessReport> all, GatherReports(pump, report));
    if (pump.rank() == 0) reports = std::move(all);
    int exit_code = 0;
    return TellVerdict(pump, exit_code);
  };
  EXPECT_THAT(RunCheckAtServers(check), testing::Each(absl::OkStatus()));
  ASSERT_EQ(reports.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const v1::ProcessReport& report = reports[rank];
    EXPECT_EQ(report.links_size(), rank < 2 ? 2 : 0);
    if (rank < 2) continue;
    EXPECT_EQ(report.facts().role(), v1::ProcessFacts::SERVER);
    EXPECT_EQ(report.facts().number(), rank - 2);
    EXPECT_GT(report.facts().cores(), 0);
    EXPECT_GT(report.facts().wire_version(), 0);
  }
}

TEST(ShardRank, RefusesAWorldOfWhichOnlyAPartChecks) {
  const auto part = [](MessagePump& pump) {
    const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2};
    const JobSpec spec = job.Spec(pump.rank());
    absl::Status end =
        pump.rank() == 0 ? InviteServers(pump) : JoinServers(pump, spec, {.agreement = SerializeAgreement(spec)});
    if (end.ok()) end = pump.PumpUntil([] { return false; }, DeadlineAfter(absl::Seconds(20)), "");
    EXPECT_THAT(std::string(end.message()), HasSubstr("rank 0 has --check, rank 1 has not"));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunCheckAtServers(part), testing::Each(testing::Not(absl::OkStatus())));
}

TEST(ShardRank, TellsTheStateOfItsJob) {
  v1::GetStatusReply last;
  Training training = {.job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2}, .step_count = 3};
  training.change_server = [&last](int, ShardRank::Options& options) {
    options.on_status = [&last](const v1::GetStatusReply& status) { last = status; };
  };
  for (const absl::Status& status : RunAll(training).statuses()) EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(last.state(), v1::GetStatusReply::FINISHED);
  EXPECT_EQ(last.world_size(), 2);
  EXPECT_EQ(last.steps_complete(), 3);
}

// Each step has long slices, and takes much less than the time between two states.
TEST(ShardRank, TellsTheStateWhileLongSlicesAreSummed) {
  std::vector<int64_t> steps;
  Training training = {.job = {.element_count = 100'000, .bucket_bytes = int64_t{1} << 30, .world_size = 2},
                       .step_count = 60};
  training.change_server = [&steps](int, ShardRank::Options& options) {
    options.on_status = [&steps](const v1::GetStatusReply& status) { steps.push_back(status.steps_complete()); };
  };
  training.before_step = [](int, int64_t) {
    absl::SleepFor(absl::Milliseconds(10));
    return absl::OkStatus();
  };
  for (const absl::Status& status : RunAll(training).statuses()) EXPECT_EQ(status, absl::OkStatus());
  EXPECT_GE(std::ranges::count_if(steps, [](int64_t step) { return 0 < step && step < 60; }), 2);
  EXPECT_EQ(steps.back(), 60);
}

// Rank 0 is a bare pump, which says what no worker says.
absl::Status RunWithRequest(const ShardRequest& request, int times = 1) {
  InMemoryNetwork network(2, 3);
  absl::Status result;
  std::thread server([&] { result = ShardRank(network.CreateTransport(1), {}).Run(); });
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 1};
  const JobSpec spec = job.Spec(0);
  const std::vector<float> parameters = job.InitialParameters();
  const std::unique_ptr<Transport> transport = network.CreateTransport(0);
  MessagePump pump(transport.get(), {}, 1);
  const CollectiveOptions join = {.what = "joining", .deadline = absl::Seconds(20), .with_servers = true};
  const std::string agreement = SerializeAgreement(spec);
  EXPECT_EQ(JoinServers(pump, spec, {.agreement = agreement}), absl::OkStatus());
  EXPECT_EQ(GatherTextToRoot(pump, agreement, join).status(), absl::OkStatus());
  std::string verdict;
  EXPECT_EQ(SendTextFromRoot(pump, verdict, join), absl::OkStatus());
  EXPECT_EQ(SendStartToServers(pump, spec, parameters), absl::OkStatus());
  for (int i = 0; i < times; ++i) {
    (void)pump.Send(1, ControlTag::kShardRequest, std::as_bytes(std::span(&request, 1)));
  }
  // The server gives up, and says why.
  const absl::Status end = pump.PumpUntil([] { return false; }, DeadlineAfter(absl::Seconds(20)), "");
  EXPECT_THAT(std::string(end.message()), HasSubstr("server 0 gave up: "));
  server.join();
  return result;
}

TEST(ShardRankTest, ARequestThatNoWorkerMakesEndsTheJob) {
  using Kind = ShardRequest::Kind;
  const std::tuple<ShardRequest, std::string> kRequests[] = {
      {{.kind = static_cast<Kind>(7)}, "a request of kind 7 from rank 0"},
      {{.kind = static_cast<Kind>(-1)}, "a request of kind -1 from rank 0"},
      {{.kind = Kind::kFetchState, .bucket = 1}, "bucket 1 is not below the bucket count 1"},
      {{.kind = Kind::kFetchState, .bucket = -1}, "bucket -1 is not below"},
      {{.kind = Kind::kFetchState, .vector = 1}, "state vector 1 is not below 1"},
      {{.kind = Kind::kFetchState, .vector = -1}, "state vector -1 is not below 1"},
  };
  for (const auto& [request, why] : kRequests) {
    const absl::Status status = RunWithRequest(request);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace starring
