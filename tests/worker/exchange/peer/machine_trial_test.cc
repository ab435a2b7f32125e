#include "worker/exchange/peer/machine_trial.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/transport/message_pump.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "worker/exchange/peer/ring_machine.h"

namespace starring {
namespace {

absl::StatusOr<double> TimeARing(InMemoryNetwork& network, int rank, absl::Duration deadline) {
  const std::unique_ptr<Transport> transport = network.CreateTransport(rank);
  MessagePump pump(transport.get(), {});
  const BucketMap buckets = ExampleJob{.element_count = 100'000, .bucket_bytes = 1, .world_size = 2}.Buckets();
  std::vector<std::vector<ElementRange>> slices;
  for (int b = 0; b < buckets.bucket_count(); ++b)
    slices.push_back(OwnerMap::SplitChunks(buckets.world_size()).SliceOf(buckets.sum(b), rank));
  auto trial = MachineTrial::Create({.buckets = buckets, .slices = slices, .optimizer = {}, .own_gradient = {}});
  CHECK_OK(trial);
  const auto seconds = (*trial)->Time(
      pump,
      [&] {
        return std::make_unique<RingMachine>(RankMachineOptions{.buckets = &(*trial)->buckets(),
                                                                .owner = (*trial)->owner(),
                                                                .parameters = (*trial)->parameters(),
                                                                .transport = transport.get(),
                                                                .first_tag = MessagePump::kFirstDataTag});
      },
      {.what = "the trial", .deadline = deadline});
  // After an error the transport still has operations in the trial's memory. It stays reachable, so it is no leak.
  static auto* const left = new std::vector<std::unique_ptr<MachineTrial>>;
  if (!seconds.ok()) left->push_back(*std::move(trial));
  return seconds;
}

TEST(MachineTrial, TimesRoundsOfAllRanks) {
  InMemoryNetwork network(2, 1);
  std::vector<absl::StatusOr<double>> seconds(2, absl::UnknownError("not run"));
  std::thread one([&] { seconds[1] = TimeARing(network, 1, absl::Seconds(20)); });
  seconds[0] = TimeARing(network, 0, absl::Seconds(20));
  one.join();
  for (const auto& each : seconds) {
    ASSERT_EQ(each.status(), absl::OkStatus());
    EXPECT_GT(*each, 0);
    EXPECT_LT(*each, 20);
  }
}

TEST(MachineTrial, NamesARankThatDoesNotTakePart) {
  InMemoryNetwork network(2, 1);
  const absl::StatusOr<double> seconds = TimeARing(network, 0, absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(seconds.status())) << seconds.status();
  const std::string message(seconds.status().message());
  EXPECT_THAT(message, testing::StartsWith("the trial did not end within 200ms: "));
  EXPECT_THAT(message, testing::HasSubstr("rank 1"));
}

}  // namespace
}  // namespace starring
