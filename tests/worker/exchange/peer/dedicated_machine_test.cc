// The messages between a worker and servers; tests/server/shard/shard_rank_test.cc has the real servers and the bits.
#include "worker/exchange/peer/dedicated_machine.h"

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/transport/shard_wire.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/worker/exchange/peer/example_job.h"

namespace starring {
namespace {

constexpr int kFirstTag = 40;

// Answers each contribution of one worker with its values + 1000 (shard + 1).
class EchoServer final : public Transport::Poster {
 public:
  EchoServer(std::unique_ptr<Transport> transport, const BucketMap& buckets, int shard, int shard_count)
      : buckets_(buckets),
        shard_(shard),
        shard_count_(shard_count),
        slices_(buckets.bucket_count()),
        transport_(std::move(transport)) {
    for (int b = 0; b < buckets.bucket_count(); ++b) {
      slices_[b].resize(OwnerMap::ShardRanges(shard_count_).RangeOf(buckets_.sum(b), shard_).size());
      if (!slices_[b].empty()) Receive(b);
    }
  }

  void Poll() {
    std::vector<Transport::Token> completed;
    CHECK_OK(transport_->Poll(completed));
    for (const auto& [poster, operation] : completed) poster->OnCompletion(operation);
  }
  void OnCompletion(uint64_t operation) override {
    const int bucket = static_cast<int>(operation / 2);
    if (operation % 2 == 1) return Receive(bucket);  // the answer has left
    contributions.push_back(bucket);
    if (holds) return held_.push_back(operation);
    Answer(operation);
  }

  // Answers what it held, and holds no more.
  void Release() {
    holds = false;
    for (const uint64_t operation : std::exchange(held_, {})) Answer(operation);
  }

  std::vector<int> contributions;  // buckets, as they came
  bool holds = false;              // keeps contributions without an answer

 private:
  void Answer(uint64_t operation) {
    const int bucket = static_cast<int>(operation / 2);
    for (float& value : slices_[bucket]) value += 1000.0f * static_cast<float>(shard_ + 1);
    transport_->PostSend(0, ParametersTag(kFirstTag, bucket), std::as_bytes(std::span(slices_[bucket])),
                         {.poster = this, .operation = operation + 1});
  }
  void Receive(int bucket) {
    transport_->PostReceive(0, GradientTag(kFirstTag, bucket), std::as_writable_bytes(std::span(slices_[bucket])),
                            {.poster = this, .operation = 2 * static_cast<uint64_t>(bucket)});
  }

  const BucketMap& buckets_;
  const int shard_;
  const int shard_count_;
  std::vector<std::vector<float>> slices_;
  std::vector<uint64_t> held_;
  const std::unique_ptr<Transport> transport_;
};

// Trains `steps` steps of one worker with `server_count` servers; each answer must be at its own place.
void Exchange(int64_t element_count, int server_count, int steps) {
  const ExampleJob job = {
      .element_count = element_count, .bucket_bytes = 1, .world_size = 1, .values = GradientValues::kIntegers};
  const BucketMap buckets = job.Buckets();
  InMemoryNetwork network(1 + server_count, 7 * static_cast<uint64_t>(server_count));
  std::vector<std::unique_ptr<EchoServer>> servers;
  for (int shard = 0; shard < server_count; ++shard) {
    servers.push_back(std::make_unique<EchoServer>(network.CreateTransport(1 + shard), buckets, shard, server_count));
  }
  std::vector<float> parameters(element_count, -7.0f);
  const std::unique_ptr<Transport> transport = network.CreateTransport(0);
  DedicatedMachine machine({.buckets = &buckets,
                            .parameters = parameters,
                            .transport = transport.get(),
                            .server_count = server_count,
                            .first_tag = kFirstTag});
  for (int step = 0; step < steps; ++step) {
    const std::vector<float> gradient = job.Gradient(0, step);
    for (int b = 0; b < buckets.bucket_count(); ++b) {
      const ElementRange range = buckets.bucket(b);
      machine.Submit(step, b, std::span<const float>(gradient).subspan(range.begin, range.size()));
      EXPECT_FALSE(machine.IsReady(b));
    }
    EXPECT_EQ(machine.Oldest().step, step);
    std::vector<Transport::Token> completed;
    for (int round = 0; !machine.IsIdle(); ++round) {
      ASSERT_LT(round, 1'000'000);
      completed.clear();
      ASSERT_TRUE(transport->Poll(completed).ok());
      for (const auto& [poster, operation] : completed) poster->OnCompletion(operation);
      for (const auto& server : servers) server->Poll();
    }
    for (int b = 0; b < buckets.bucket_count(); ++b) {
      EXPECT_TRUE(machine.IsReady(b));
      for (int shard = 0; shard < server_count; ++shard) {
        const ElementRange slice = OwnerMap::ShardRanges(server_count).RangeOf(buckets.sum(b), shard);
        for (int64_t i = slice.begin; i < slice.end; ++i) {
          ASSERT_EQ(parameters[i], gradient[i] + 1000.0f * static_cast<float>(shard + 1)) << i;
        }
      }
    }
  }
  EXPECT_EQ(machine.counters().bytes_sent, steps * element_count * 4);
  EXPECT_EQ(machine.counters().bytes_received, steps * element_count * 4);
}

TEST(DedicatedMachineTest, EachServerGetsItsSliceAndItsAnswerIsAtItsPlace) {
  for (const int server_count : {1, 2, 3}) Exchange(100'000, server_count, 3);
}

// One line of 16 elements belongs to one of three servers. The others get no message, and none is awaited.
TEST(DedicatedMachineTest, AServerThatOwnsNothingOfABucketGetsNothing) { Exchange(16, 3, 2); }

// A server that does not answer has kShardSlicesMax contributions, however many buckets were submitted, and the other
// server its own. As it answers, the rest follows.
TEST(DedicatedMachineTest, FewContributionsAreOnTheirWayToOneServer) {
  const ExampleJob job = {
      .element_count = 400'000, .bucket_bytes = 1, .world_size = 1, .values = GradientValues::kIntegers};
  const BucketMap buckets = job.Buckets();
  ASSERT_GT(buckets.bucket_count(), 2 * kShardSlicesMax);
  InMemoryNetwork network(3, 7);
  EchoServer slow(network.CreateTransport(1), buckets, 0, 2);
  EchoServer quick(network.CreateTransport(2), buckets, 1, 2);
  slow.holds = true;
  std::vector<float> parameters(job.element_count);
  const std::vector<float> gradient = job.Gradient(0, 0);
  const std::unique_ptr<Transport> transport = network.CreateTransport(0);
  DedicatedMachine machine({.buckets = &buckets,
                            .parameters = parameters,
                            .transport = transport.get(),
                            .server_count = 2,
                            .first_tag = kFirstTag});
  for (int b = 0; b < buckets.bucket_count(); ++b) {
    const ElementRange range = buckets.bucket(b);
    machine.Submit(0, b, std::span<const float>(gradient).subspan(range.begin, range.size()));
  }
  const auto pump = [&](int rounds) {
    for (int round = 0; round < rounds && !machine.IsIdle(); ++round) {
      std::vector<Transport::Token> completed;
      CHECK_OK(transport->Poll(completed));
      for (const auto& [poster, operation] : completed) poster->OnCompletion(operation);
      slow.Poll();
      quick.Poll();
    }
  };
  pump(10'000);
  EXPECT_EQ(slow.contributions.size(), kShardSlicesMax);
  EXPECT_EQ(quick.contributions.size(), buckets.bucket_count());
  EXPECT_EQ(machine.Oldest().bucket, 0);
  slow.Release();
  pump(100'000);
  EXPECT_TRUE(machine.IsIdle());
  ASSERT_EQ(slow.contributions.size(), buckets.bucket_count());
  // Those on their way may overtake each other. Those that wait may not: with two workers that would be a deadlock.
  for (int i = 0; i < buckets.bucket_count(); ++i) EXPECT_LT(slow.contributions[i], i + kShardSlicesMax);
}

}  // namespace
}  // namespace starring
