#include "worker/exchange/star/star_exchange.h"

#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/star/star_fixture.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

class StarShapeTest : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(StarShapeTest, HasTheBitsOfOneShardWithoutANetwork) {
  const auto [world_size, server_count, lanes] = GetParam();
  constexpr int64_t kElements = 100'003;
  constexpr int64_t kSteps = 4;
  Servers servers(server_count);
  std::vector<std::vector<float>> parameters(world_size);
  RunWorkers(world_size, [&, world = world_size, lane_count = lanes](int rank) {
    const JobSpec job = MakeJob(rank, world, kElements, 64 << 10);
    parameters[rank] = rank == 0 ? InitialParameters(job.layout.element_count())
                                 : std::vector<float>(job.layout.element_count(), -1.0f);
    auto exchange = MakeStar(servers.addresses, lane_count);
    ASSERT_TRUE(exchange->Start(job, parameters[rank]).ok());
    EXPECT_EQ(parameters[rank], InitialParameters(job.layout.element_count()));
    const absl::Status trained = TrainSteps(exchange.get(), job, kSteps, RoughGradientAt);
    EXPECT_TRUE(trained.ok()) << trained;
    const absl::Status finished = exchange->Finish();
    EXPECT_TRUE(finished.ok()) << finished;
    const int64_t bytes = kSteps * job.layout.element_count() * 4;
    EXPECT_GE(exchange->counters().bytes_sent, bytes);
    EXPECT_GE(exchange->counters().bytes_received, bytes);
  });
  for (const auto& server : servers.servers) {
    const absl::Status status = server->Wait();
    EXPECT_TRUE(status.ok()) << status;
  }
  const std::vector<float> expected =
      ReferenceRun(MakeJob(0, world_size, kElements, 64 << 10), kSteps, RoughGradientAt);
  for (int rank = 0; rank < world_size; ++rank) EXPECT_EQ(parameters[rank], expected) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(Shapes, StarShapeTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(1, 2, 3),
                                            ::testing::Values(2)));
INSTANTIATE_TEST_SUITE_P(Lanes, StarShapeTest,
                         ::testing::Combine(::testing::Values(2), ::testing::Values(2), ::testing::Values(1, 4)));

}  // namespace
}  // namespace starring
