#include "worker/exchange/star/star_exchange.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "common/arithmetic/optimizer.h"
#include "common/base/limits.h"
#include "common/network/address.h"
#include "common/network/dial.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/star/star_fixture.h"
#include "tests/worker/exchange/star/tcp_proxy.h"
#include "tests/worker/processor_share.h"

namespace starring {
namespace {

class StarShapeTest : public ::testing::TestWithParam<std::tuple<int, int, int, SameHost>> {};

TEST_P(StarShapeTest, HasTheBitsOfOneShardWithoutANetwork) {
  const auto [world_size, server_count, lanes, same_host] = GetParam();
  constexpr int64_t kElements = 200'003;
  constexpr int64_t kSteps = 4;
  Servers servers(server_count);
  std::vector<std::vector<float>> parameters(world_size);
  RunWorkers(world_size, [&, world = world_size, lane_count = lanes, mode = same_host](int rank) {
    const JobSpec job = MakeJob(rank, world, kElements, 1);
    parameters[rank] = rank == 0 ? InitialParameters(job.layout.element_count())
                                 : std::vector<float>(job.layout.element_count(), -1.0f);
    auto exchange = MakeStar(servers.addresses, lane_count, mode);
    ASSERT_TRUE(exchange->Start(job, parameters[rank]).ok());
    EXPECT_EQ(ParametersOf(*exchange, parameters[rank]), InitialParameters(job.layout.element_count()));
    const absl::Status trained = TrainSteps(exchange.get(), job, kSteps, RoughGradientAt);
    EXPECT_TRUE(trained.ok()) << trained;
    const absl::Status finished = exchange->Finish();
    EXPECT_TRUE(finished.ok()) << finished;
    const int64_t bytes = kSteps * job.layout.element_count() * 4;
    EXPECT_GE(exchange->counters().bytes_sent, bytes);
    EXPECT_GE(exchange->counters().bytes_received, bytes);
    EXPECT_EQ(exchange->counters().shared_memory, mode == SameHost::kSharedMemory);
    parameters[rank] = ParametersOf(*exchange, parameters[rank]);
  });
  for (const auto& server : servers.servers) {
    const absl::Status status = server->Wait();
    EXPECT_TRUE(status.ok()) << status;
  }
  const std::vector<float> expected = ReferenceRun(MakeJob(0, world_size, kElements, 1), kSteps, RoughGradientAt);
  for (int rank = 0; rank < world_size; ++rank) EXPECT_EQ(parameters[rank], expected) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(Shapes, StarShapeTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(1, 2, 3),
                                            ::testing::Values(2),
                                            ::testing::Values(SameHost::kSharedMemory, SameHost::kSocket)));
INSTANTIATE_TEST_SUITE_P(Lanes, StarShapeTest,
                         ::testing::Combine(::testing::Values(2), ::testing::Values(2), ::testing::Values(1, 4),
                                            ::testing::Values(SameHost::kSharedMemory, SameHost::kSocket)));

// The servers answer each worker in the way it asks: one worker reads in shared memory what another receives by socket.
TEST(StarExchangeTest, SomeWorkersShareMemoryAndOthersDoNot) {
  constexpr int kWorkers = 4;
  constexpr int64_t kSteps = 4;
  for (const int first : {0, 1}) {  // rank 0 sends the initial parameters
    Servers servers(2);
    std::vector<std::vector<float>> parameters(kWorkers);
    RunWorkers(kWorkers, [&](int rank) {
      const JobSpec job = MakeJob(rank, kWorkers, 50'000, 32 << 10);
      parameters[rank] = InitialParameters(job.layout.element_count());
      auto exchange = MakeStar(servers.addresses, 2, rank % 2 == first ? SameHost::kSharedMemory : SameHost::kSocket);
      ASSERT_TRUE(exchange->Start(job, parameters[rank]).ok());
      EXPECT_EQ(exchange->counters().shared_memory, rank % 2 == first);
      ASSERT_TRUE(TrainSteps(exchange.get(), job, kSteps, RoughGradientAt).ok());
      ASSERT_TRUE(exchange->Finish().ok());
      parameters[rank] = ParametersOf(*exchange, parameters[rank]);
    });
    const std::vector<float> expected = ReferenceRun(MakeJob(0, kWorkers, 50'000, 32 << 10), kSteps, RoughGradientAt);
    for (int rank = 0; rank < kWorkers; ++rank) EXPECT_EQ(parameters[rank], expected) << "rank " << rank;
  }
}

// All of this process together, while the third worker sleeps: two workers that wait for it, and two servers.
TEST(StarExchangeTest, WaitingForASlowWorkerCostsNoCore) {
  constexpr int kWorkers = 3;
  for (const SameHost same_host : {SameHost::kSharedMemory, SameHost::kSocket}) {
    Servers servers(2);
    RunWorkers(kWorkers, [&](int rank) {
      JobSpec job = MakeJob(rank, kWorkers, 1000, 1);
      std::vector<float> parameters = InitialParameters(job.layout.element_count());
      auto exchange = MakeStar(servers.addresses, 2, same_host);
      ASSERT_TRUE(exchange->Start(job, parameters).ok());
      ASSERT_TRUE(TrainSteps(exchange.get(), job, 2, GradientAt).ok());
      if (rank == 2) {
        const ProcessorShare others_wait;
        std::this_thread::sleep_for(std::chrono::seconds(2));
        EXPECT_LT(others_wait.Read(), 0.1);
      }
      job.first_step = 2;
      ASSERT_TRUE(TrainSteps(exchange.get(), job, 1, GradientAt).ok());
      ASSERT_TRUE(exchange->Finish().ok());
    });
  }
}

bool HasBbr(int fd) {
  std::array<char, 16> name = {};
  socklen_t length = name.size() - 1;
  return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) == 0 && name[0] == 'b' && name[1] == 'b';
}

TEST(StarExchangeTest, NoEndOfALaneHasBbr) {
  const Socket probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!HasBbr(probe.fd())) GTEST_SKIP() << "BBR is not this system's default";
  constexpr int kServers = 2, kLanes = 2;
  Servers servers(kServers);
  const JobSpec job = MakeJob(0, 1, 1000, 1);
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = MakeStar(servers.addresses, kLanes);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  int ends = 0, ends_with_bbr = 0;
  const auto count = [&](int fd) {
    ++ends;
    ends_with_bbr += HasBbr(fd) ? 1 : 0;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // there is no event to wait for
    ends = ends_with_bbr = 0;
    std::set<std::string> workers;
    ForEachConnectionTo({servers.addresses.begin(), servers.addresses.end()}, [&](int fd) {
      count(fd);
      sockaddr_in6 own = {};  // its port is where that of IPv4 is
      socklen_t length = sizeof(own);
      ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length), 0);
      workers.insert("127.0.0.1:" + std::to_string(ntohs(own.sin6_port)));
    });
    ForEachConnectionTo(workers, count);
  } while ((ends < 2 * kServers * kLanes || ends_with_bbr > 0) && std::chrono::steady_clock::now() < deadline);
  EXPECT_GE(ends, 2 * kServers * kLanes);
  EXPECT_EQ(ends_with_bbr, 0);
  EXPECT_TRUE(exchange->Finish().ok());
}

// As a worker's connection to its coordinator, which has the address of shard 0.
TEST(StarExchangeTest, TheEndOfAGenerationCutsNoOlderConnection) {
  Servers servers(1);
  std::vector<DialResult> link = DialAll(servers.addresses, absl::Seconds(20));
  ASSERT_EQ(link[0].error, "");
  std::atomic<bool> is_over = false;
  auto exchange = CreateStarExchange(
      {.addresses = servers.addresses, .run_id = "", .superseded = [&is_over] { return is_over.load(); }});
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  const JobSpec job = MakeJob(0, 1, 1000, 1);
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  ASSERT_TRUE((*exchange)->Start(job, parameters).ok());
  is_over = true;
  absl::Status status;
  for (int64_t step = 0; status.ok(); ++step) {
    for (int b = 0; b < job.buckets.bucket_count(); ++b) {
      const ElementRange range = job.buckets.bucket(b);
      (*exchange)->Submit(
          {.round = step, .bucket = b, .gradient = std::span(parameters).subspan(range.begin, range.size())});
    }
    for (int b = 0; b < job.buckets.bucket_count() && status.ok(); ++b) status = (*exchange)->Await(step, b);
  }
  EXPECT_EQ(status.message(), "the generation is over");
  pollfd end = {.fd = link[0].socket.fd(), .events = POLLRDHUP, .revents = 0};
  EXPECT_EQ(poll(&end, 1, 0), 0) << "the connection was shut down";
}

TEST(StarExchangeTest, AGradientMayBeOutsideTheSharedMemory) {
  Servers servers(2);
  const JobSpec job = MakeJob(0, 1, 50'000, 32 << 10);
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = MakeStar(servers.addresses);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  ASSERT_FALSE(exchange->memory().gradients.empty());
  std::vector<float> gradient(job.layout.element_count());
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = RoughGradientAt(0, 0, static_cast<int64_t>(i));
  for (int b = 0; b < job.buckets.bucket_count(); ++b) {
    const ElementRange range = job.buckets.bucket(b);
    exchange->Submit(
        {.round = 0, .bucket = b, .gradient = std::span<const float>(gradient).subspan(range.begin, range.size())});
    ASSERT_TRUE(exchange->Await(0, b).ok());
  }
  ASSERT_TRUE(exchange->Finish().ok());
  EXPECT_EQ(ParametersOf(*exchange, parameters), ReferenceRun(job, 1, RoughGradientAt));
}

// Sums of integers do not depend on the order, so the test need not know it.
TEST(StarExchangeTest, IntegerGradientsGiveTheExactSum) {
  constexpr int kWorkers = 3;
  Servers servers(2);
  RunWorkers(kWorkers, [&](int rank) {
    JobSpec job = MakeJob(rank, kWorkers, 200'000, 1);
    job.optimizer.momentum = 0;
    job.schedule.base = 1;
    std::vector<float> parameters(job.layout.element_count(), 0.0f);
    auto exchange = MakeStar(servers.addresses);
    ASSERT_TRUE(exchange->Start(job, parameters).ok());
    ASSERT_TRUE(TrainSteps(exchange.get(), job, 3, GradientAt).ok());
    ASSERT_TRUE(exchange->Finish().ok());
    parameters = ParametersOf(*exchange, parameters);
    for (size_t i = 0; i < parameters.size(); ++i) {
      float sum = 0;
      for (int r = 0; r < kWorkers; ++r) {
        for (int64_t step = 0; step < 3; ++step) sum += GradientAt(r, step, static_cast<int64_t>(i));
      }
      ASSERT_EQ(parameters[i], -sum) << i;
    }
  });
}

TEST(StarExchangeTest, SumsInRankOrderOnEveryWorker) {
  constexpr int kWorkers = 3;
  Servers servers(2);
  RunWorkers(kWorkers, [&](int rank) {
    const JobSpec job = MakeJob(rank, kWorkers, 1000, 32 << 10);
    std::vector<float> parameters(job.layout.element_count());
    auto exchange = MakeStar(servers.addresses);
    ASSERT_TRUE(exchange->Start(job, parameters).ok());
    for (int i = 0; i < 20; ++i) {
      // Added from rank 0 on, the large values cancel before the small one is added.
      std::vector<double> values = {rank == 0 ? 1e300 : rank == 1 ? -1e300 : 1.5, static_cast<double>(rank + i)};
      ASSERT_TRUE(exchange->Sum(SumPurpose::kStopVote, values).ok());
      EXPECT_EQ(values[0], 1.5);
      EXPECT_EQ(values[1], 3.0 + 3 * i);
    }
    ASSERT_TRUE(exchange->Sum(SumPurpose::kStopVote, {}).ok());
    ASSERT_TRUE(exchange->Finish().ok());
  });
}

// A star of 2 shards saves after 3 steps, one of 3 shards continues: the bits are those of an uninterrupted run.
TEST(StarExchangeTest, OptimizerStateTravelsThroughACheckpoint) {
  constexpr int kWorkers = 2;
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    const auto make_job = [&](int rank) {
      JobSpec job = MakeJob(rank, kWorkers, 150'000, 1);
      job.optimizer.kind = kind;
      if (kind == OptimizerKind::kAdamW) job.optimizer.momentum = 0;
      return job;
    };
    std::vector<float> parameters[kWorkers];
    std::vector<std::vector<float>> state(StateVectorCount(make_job(0).optimizer));
    {
      Servers servers(2);
      RunWorkers(kWorkers, [&](int rank) {
        const JobSpec job = make_job(rank);
        parameters[rank] = InitialParameters(job.layout.element_count());
        auto exchange = MakeStar(servers.addresses);
        ASSERT_TRUE(exchange->Start(job, parameters[rank]).ok());
        ASSERT_TRUE(TrainSteps(exchange.get(), job, 3, RoughGradientAt).ok());
        std::vector<std::span<float>> spans;
        if (rank == 0) {
          for (std::vector<float>& vector : state) {
            vector.assign(job.layout.element_count(), -1.0f);
            spans.emplace_back(vector);
          }
        }
        const absl::Status gathered = exchange->GatherOptimizerState(spans);
        ASSERT_TRUE(gathered.ok()) << gathered;
        ASSERT_TRUE(exchange->Finish().ok());
        parameters[rank] = ParametersOf(*exchange, parameters[rank]);
      });
    }
    Servers servers(3);
    RunWorkers(kWorkers, [&](int rank) {
      JobSpec job = make_job(rank);
      job.first_step = 3;
      std::vector<float> saved(parameters[0]);
      if (rank == 0) {
        for (const std::vector<float>& vector : state) job.optimizer_state.emplace_back(vector);
      } else {
        std::fill(saved.begin(), saved.end(), 0.0f);  // Start must replace them by rank 0's
      }
      auto exchange = MakeStar(servers.addresses);
      const absl::Status started = exchange->Start(job, saved);
      ASSERT_TRUE(started.ok()) << started;
      ASSERT_TRUE(TrainSteps(exchange.get(), job, 2, RoughGradientAt).ok());
      ASSERT_TRUE(exchange->Finish().ok());
      EXPECT_EQ(ParametersOf(*exchange, saved), ReferenceRun(make_job(rank), 5, RoughGradientAt));
    });
  }
}

// More slices than a lane may have unanswered, submitted at different speeds, cause no deadlock.
TEST(StarExchangeTest, ManyBucketsOnOneLane) {
  constexpr int kWorkers = 3;
  Servers servers(2);
  std::vector<std::vector<float>> parameters(kWorkers);
  RunWorkers(kWorkers, [&](int rank) {
    const JobSpec job = MakeJob(rank, kWorkers, 3'300'000, 4);
    EXPECT_GT(job.buckets.bucket_count(), 4 * kLaneRequestsMax);
    parameters[rank] = InitialParameters(job.layout.element_count());
    auto exchange = MakeStar(servers.addresses, 1);
    ASSERT_TRUE(exchange->Start(job, parameters[rank]).ok());
    ASSERT_TRUE(TrainSteps(exchange.get(), job, 2, RoughGradientAt).ok());
    ASSERT_TRUE(exchange->Finish().ok());
    parameters[rank] = ParametersOf(*exchange, parameters[rank]);
  });
  EXPECT_EQ(parameters[0], ReferenceRun(MakeJob(0, kWorkers, 3'300'000, 4), 2, RoughGradientAt));
  EXPECT_EQ(parameters[1], parameters[0]);
}

// A bucket of fewer 64-byte lines than there are shards leaves some shards without a slice.
TEST(StarExchangeTest, ShardsWithoutASlice) {
  Servers servers(3);
  const JobSpec job = MakeJob(0, 1, 5, 4);
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = MakeStar(servers.addresses);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  ASSERT_TRUE(TrainSteps(exchange.get(), job, 2, RoughGradientAt).ok());
  ASSERT_TRUE(exchange->Finish().ok());
  EXPECT_EQ(ParametersOf(*exchange, parameters), ReferenceRun(job, 2, RoughGradientAt));
  for (const auto& server : servers.servers) EXPECT_TRUE(server->Wait().ok());
}

// Slices travel in parts in both directions; the connections break in the middle of a part.
TEST(StarExchangeTest, ASliceMayBeLongerThanAMessage) {
  const int64_t elements = kMessagePayloadBytesMax / 4 + 40'000;
  Servers servers(1);
  TcpProxy proxy(servers.addresses[0]);
  proxy.CutEvery(kMessagePayloadBytesMax + 50'021, 1);
  const JobSpec job = MakeJob(0, 1, elements, 2 * kMessagePayloadBytesMax);
  ASSERT_EQ(job.buckets.bucket_count(), 1);
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = MakeStar({proxy.address()}, 1, SameHost::kSocket);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  const absl::Status trained = TrainSteps(exchange.get(), job, 1, RoughGradientAt);
  EXPECT_TRUE(trained.ok()) << trained;
  std::vector<float> state(job.layout.element_count());
  const std::span<float> states[] = {state};
  EXPECT_TRUE(exchange->GatherOptimizerState(states).ok());
  EXPECT_TRUE(exchange->Finish().ok());
  EXPECT_EQ(proxy.cuts(), 1);
  EXPECT_TRUE(parameters == ReferenceRun(job, 1, RoughGradientAt));
  for (const int64_t i : {int64_t{0}, elements / 2, elements - 1}) EXPECT_EQ(state[i], RoughGradientAt(0, 0, i)) << i;
}

}  // namespace
}  // namespace starring
