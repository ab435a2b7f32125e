// Tests that ring and co-located star share; ring_machine_test.cc and star_machine_test.cc have the others.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/metrics/trace.h"
#include "common/transport/transport.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/machine_ranks.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/peer/ring_machine.h"
#include "worker/exchange/peer/star_machine.h"
#include "worker/exchange/slice_owner.h"

namespace starring {
namespace {

void ExpectParameters(const std::vector<float>& expected, const MachineRanks& ranks, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    ASSERT_EQ(ranks.parameters(rank), expected) << "rank " << rank;  // bit by bit: no NaN is among them
  }
}

using KindAndRanks = std::tuple<MachineKind, int>;

class RankMachines : public testing::TestWithParam<KindAndRanks> {
 protected:
  MachineKind kind() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
};

std::string NameOf(const testing::TestParamInfo<KindAndRanks>& info) {
  return testing::PrintToString(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Machines, RankMachines,
                         testing::Combine(testing::Values(MachineKind::kRing, MachineKind::kStar),
                                          testing::Values(1, 2, 3, 4, 5, 8, 16)),
                         NameOf);

// A block that is shorter than the number of ranks has empty chunks; with one element more than a block the last block
// is such a one.
TEST_P(RankMachines, GiveTheBitsOfTheReductionOrder) {
  const int64_t block = ReductionBlockElements(world_size());
  std::vector<int64_t> counts = {1, 3, 4, 5, 16, 1023, block / 3 + 7, block + 1};
  if (world_size() <= 5) counts.insert(counts.end(), {block, 3 * block / 2 + 1233});
  for (const int64_t element_count : counts) {
    const bool small = element_count <= 1023;
    for (uint64_t seed = 1; seed <= (small ? 3 : 1); ++seed) {
      SCOPED_TRACE(testing::Message() << element_count << " elements, seed " << seed);
      const int64_t steps = small || world_size() <= 5 ? 3 : 1;
      const ExampleJob job = {
          .element_count = element_count, .bucket_bytes = 1, .world_size = world_size(), .seed = seed};
      MachineRanks ranks(job, {.kind = kind(), .seed = seed});
      ranks.Run(steps);
      ExpectParameters(job.Reference(steps), ranks, world_size());
    }
  }
}

TEST_P(RankMachines, SumIntegersExactly) {
  const ExampleJob job = {.element_count = ReductionBlockElements(world_size()) / 2 + 1233,
                          .bucket_bytes = 1,
                          .world_size = world_size(),
                          .values = GradientValues::kIntegers,
                          .optimizer = {}};
  MachineRanks ranks(job, {.kind = kind(), .seed = 7});
  ranks.Run(1);
  std::vector<float> sum(job.element_count, 0.0f);
  for (int rank = 0; rank < job.world_size; ++rank) {
    const std::vector<float> gradient = job.Gradient(rank, 0);
    for (int64_t i = 0; i < job.element_count; ++i) sum[i] += gradient[i];
  }
  std::vector<float> expected = job.InitialParameters();
  for (int64_t i = 0; i < job.element_count; ++i) expected[i] -= 0.125f * sum[i];
  ExpectParameters(expected, ranks, world_size());
}

TEST_P(RankMachines, CountTheBytesOfAReduceScatterAndAnAllgather) {
  const ExampleJob job = {.element_count = 4096 * world_size(), .bucket_bytes = 1, .world_size = world_size()};
  MachineRanks ranks(job, {.kind = kind(), .seed = 5});
  ranks.Run(2);
  const int64_t bytes = 2 * 2 * (world_size() - 1) * 4096 * 4;  // steps * phases * rounds * a chunk's bytes
  for (int rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(ranks.machine(rank).counters().bytes_sent, bytes);
    EXPECT_EQ(ranks.machine(rank).counters().bytes_received, bytes);
    EXPECT_GT(ranks.machine(rank).counters().optimizer_seconds, 0);
  }
}

class RankMachineKinds : public testing::TestWithParam<MachineKind> {};

INSTANTIATE_TEST_SUITE_P(Machines, RankMachineKinds, testing::Values(MachineKind::kRing, MachineKind::kStar),
                         testing::PrintToStringParamName());

TEST_P(RankMachineKinds, GiveTheSameBitsWhateverTheBucketAndTheWindow) {
  for (const int world_size : {1, 2, 4, 5, 8}) {
    const int64_t block = ReductionBlockElements(world_size);
    struct Cut {
      int64_t bucket_bytes;
      int groups_in_flight_max;
    };
    ExampleJob job = {.element_count = 5 * block / 2,
                      .bucket_bytes = 1,
                      .world_size = world_size,
                      .optimizer = {.kind = OptimizerKind::kAdamW, .weight_decay = 0.01f}};
    const std::vector<float> expected = job.Reference(2);
    for (const Cut& cut : {Cut{1, 1}, Cut{1, 7}, Cut{2 * block * 4, 2}, Cut{1 << 30, 1}, Cut{1 << 30, 2}}) {
      SCOPED_TRACE(testing::Message() << world_size << " ranks, " << cut.bucket_bytes << " bytes a bucket, window "
                                      << cut.groups_in_flight_max);
      job.bucket_bytes = cut.bucket_bytes;
      MachineRanks ranks(job, {.kind = GetParam(), .seed = 3, .groups_in_flight_max = cut.groups_in_flight_max});
      ranks.Run(2);
      ExpectParameters(expected, ranks, world_size);
    }
  }
}

// With more than four ranks one message has the chunks of several blocks: of four with 5 and 8 ranks, of eight with 16.
// The last group of a bucket has fewer blocks, one block, or a block that is cut short; so has the vector's.
TEST_P(RankMachines, PackSeveralBlocksInAMessage) {
  if (world_size() < 5) return;  // a message is one block's
  const int64_t block = ReductionBlockElements(world_size());
  const int64_t blocks_per_group = kChunkBytesMax / ChunkBytesFor(world_size());
  ASSERT_GT(blocks_per_group, 1);
  struct Cut {
    int64_t element_count;
    int64_t bucket_blocks;
  };
  std::vector<Cut> cuts = {Cut{2 * block, 2}, Cut{3 * block / 2 + 7, 2},
                           Cut{(blocks_per_group + 2) * block - 5, blocks_per_group - 1}};
  // With more ranks the arrays are longer, and what is done with them is the same.
  if (world_size() == 5) {
    cuts.insert(cuts.end(), {Cut{block + 3, 2}, Cut{blocks_per_group * block, blocks_per_group},
                             Cut{(2 * blocks_per_group + 1) * block + 1233, 2 * blocks_per_group + 2},
                             Cut{(2 * blocks_per_group + 1) * block, blocks_per_group + 1}});
  }
  const int64_t steps = world_size() == 5 ? 2 : 1;
  for (const Cut& cut : cuts) {
    SCOPED_TRACE(testing::Message() << cut.element_count << " elements, " << cut.bucket_blocks << " blocks a bucket");
    ExampleJob job = {
        .element_count = cut.element_count, .bucket_bytes = cut.bucket_blocks * block * 4, .world_size = world_size()};
    for (const SumOrder order : {SumOrder::kChain, SumOrder::kTree}) {
      if (order == SumOrder::kTree && kind() == MachineKind::kRing) continue;
      job.sum_order = order;
      MachineRanks ranks(job, {.kind = kind(), .seed = static_cast<uint64_t>(cut.element_count)});
      ranks.Run(steps);
      ExpectParameters(job.Reference(steps), ranks, world_size());
    }
  }
}

// Whatever the number of ranks, a large bucket travels in messages of 128 KiB, and N x 128 KiB take as many as ever.
TEST_P(RankMachines, SendMessagesOf128KiB) {
  if (world_size() == 1) return;
  constexpr int kMessages = 2;
  const ExampleJob job = {.element_count = kMessages * world_size() * kChunkElementsMax,
                          .bucket_bytes = 1 << 30,
                          .world_size = world_size(),
                          .values = GradientValues::kIntegers};
  MachineRanks ranks(job, {.kind = kind(), .seed = 3});
  ranks.Run(1);
  EXPECT_EQ(ranks.network().message_bytes_max(), kChunkBytesMax);
  for (int rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(ranks.machine(rank).counters().bytes_sent, kMessages * 2 * (world_size() - 1) * kChunkBytesMax);
  }
}

// The last bucket may be shorter, with a short last block, and one alone may be all there is.
TEST_P(RankMachines, SendOneMessageForEachBucketOfAGpu) {
  if (world_size() == 1) return;
  const int64_t block = ReductionBlockElements(world_size());
  for (const int64_t element_count : {int64_t{1}, int64_t{1023}, block, 6 * block, 13 * block / 2 + 1233}) {
    for (const int64_t bucket_blocks : {1, 3, 100}) {
      ExampleJob job = {
          .element_count = element_count, .bucket_bytes = bucket_blocks * block * 4, .world_size = world_size()};
      for (const SumOrder order : {SumOrder::kChain, SumOrder::kTree}) {
        if (order == SumOrder::kTree && kind() == MachineKind::kRing) continue;
        SCOPED_TRACE(testing::Message() << element_count << " elements, " << bucket_blocks << " blocks a bucket, "
                                        << (order == SumOrder::kTree ? "tree" : "chain"));
        job.sum_order = order;
        MachineRanks ranks(job, {.kind = kind(), .seed = static_cast<uint64_t>(element_count), .is_on_gpu = true});
        ranks.Run(2);
        ExpectParameters(job.Reference(2), ranks, world_size());
        const bool is_ring = kind() == MachineKind::kRing;
        const int64_t memory =
            is_ring ? RingMachine::GpuElements(ranks.buckets()) : StarMachine::GpuElements(ranks.buckets());
        for (int rank = 0; rank < world_size(); ++rank) EXPECT_LE(ranks.scratch_elements(rank), memory);
        if (element_count != 6 * block) continue;
        EXPECT_EQ(ranks.network().message_bytes_max() * world_size(), std::min<int64_t>(bucket_blocks, 6) * block * 4);
        // A ring whose buckets have one block needs memory for the owned chunk alone.
        if (is_ring && bucket_blocks == 1) continue;
        EXPECT_EQ(ranks.scratch_elements(0), memory);
      }
    }
  }
}

// A short last block that few ranks own is a second message to them. The last bucket, with one slot, waited for the
// answer to the first one.
TEST_P(RankMachines, SendAllOfTheLastBucketOfAGpuAtOnce) {
  if (world_size() == 1 || kind() != MachineKind::kStar) return;
  const int64_t block = ReductionBlockElements(world_size());
  for (const int64_t bucket_blocks : {2, 100}) {
    const ExampleJob job = {
        .element_count = 3 * block + 17, .bucket_bytes = bucket_blocks * block * 4, .world_size = world_size()};
    MachineRanks ranks(job, {.kind = kind(), .seed = 3, .is_on_gpu = true});
    int64_t sent = 0;
    for (int rank = 0; rank < world_size(); ++rank) {
      ranks.Submit(rank, 0, job.Gradient(rank, 0));
      sent += ranks.machine(rank).counters().bytes_sent;
    }
    // Each element leaves all ranks but its owner.
    EXPECT_EQ(sent, (world_size() - 1) * job.element_count * 4) << bucket_blocks;
  }
}

// With a thousand ranks MPI may have tags for 16 blocks only, and a slow block meets one that has the same tags.
TEST_P(RankMachineKinds, DoNotConfuseBlocksThatHaveTheSameTags) {
  constexpr int kTags = 32768;  // of the in-memory transport
  for (const int world_size : {2, 3}) {
    const ExampleJob job = {
        .element_count = 9 * ReductionBlockElements(world_size) / 2, .bucket_bytes = 1, .world_size = world_size};
    const std::vector<float> expected = job.Reference(2);
    for (const int tag_sets : {1, 2}) {
      // One tag is left over, as some are with most numbers of ranks.
      const int first_tag = kTags - tag_sets * 2 * (world_size - 1) - 1;
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE(testing::Message() << world_size << " ranks, tags for " << tag_sets << " blocks, seed " << seed);
        MachineRanks ranks(job, {.kind = GetParam(), .seed = seed, .first_tag = first_tag, .groups_in_flight_max = 4});
        ranks.Run(2);
        ExpectParameters(expected, ranks, world_size);
      }
    }
  }
}

TEST_P(RankMachineKinds, TellTheOldestBucketInFlight) {
  const ExampleJob job = {.element_count = 2 * ReductionBlockElements(3), .bucket_bytes = 1, .world_size = 3};
  MachineRanks ranks(job, {.kind = GetParam(), .seed = 11});
  const std::vector<float> gradient = job.Gradient(0, 0);
  ranks.Submit(0, 0, gradient);
  // The other ranks have submitted nothing, so rank 0's buckets stay in flight however often all ranks poll.
  for (int i = 0; i < 1000; ++i) ranks.PollAnyRank();
  EXPECT_FALSE(ranks.machine(0).IsIdle());
  EXPECT_FALSE(ranks.machine(0).IsReady(0));
  EXPECT_EQ(ranks.machine(0).Oldest().step, 0);
  EXPECT_EQ(ranks.machine(0).Oldest().bucket, 0);
}

// The trainer overwrites its gradient and reads its parameters as soon as IsReady says so. Not one poll earlier may the
// machine say so.
TEST_P(RankMachineKinds, AreReadyOnlyWithTheNewParameters) {
  constexpr int kRanks = 4;
  const ExampleJob job = {.element_count = 5000, .bucket_bytes = 1, .world_size = kRanks};
  const std::vector<float> expected = job.Reference(1);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    MachineRanks ranks(job, {.kind = GetParam(), .seed = seed});
    std::vector<std::vector<float>> gradients;
    for (int rank = 0; rank < kRanks; ++rank) gradients.push_back(job.Gradient(rank, 0));
    for (int rank = 0; rank < kRanks; ++rank) ranks.Submit(rank, 0, gradients[rank]);
    int ready_count = 0;
    std::vector<bool> ready(kRanks, false);
    for (int64_t polls = 0; ready_count < kRanks; ++polls) {
      ASSERT_LT(polls, 1'000'000);
      ranks.PollAnyRank();
      for (int rank = 0; rank < kRanks; ++rank) {
        if (ready[rank] || !ranks.IsReady(rank)) continue;
        ready[rank] = true;
        ++ready_count;
        ASSERT_EQ(ranks.parameters(rank), expected) << "rank " << rank;
        std::fill(gradients[rank].begin(), gradients[rank].end(), 1e30f);
      }
    }
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ranks.parameters(rank), expected) << "rank " << rank;
  }
}

// The lines of a trace that have all of `parts`.
int CountLines(const std::string& json, const std::vector<std::string>& parts) {
  int count = 0;
  for (const absl::string_view line : absl::StrSplit(json, '\n')) {
    count += std::all_of(parts.begin(), parts.end(),
                         [line](const std::string& part) { return absl::StrContains(line, part); });
  }
  return count;
}

TEST_P(RankMachineKinds, TraceEveryMessageWithTheRankAtItsOtherEnd) {
  constexpr int kRanks = 4;
  const ExampleJob job = {.element_count = 4096 * kRanks, .bucket_bytes = 1, .world_size = kRanks};
  const Trace::Options options = {.path = testing::TempDir() + "/rank_machines.json"};
  auto trace = Trace::Create(options);
  CHECK_OK(trace);
  MachineRanks ranks(job, {.kind = GetParam(), .seed = 2, .trace = trace->get()});
  ranks.Run(1);
  CHECK_OK((*trace)->Write());
  std::ifstream file(Trace::PathOf(options));
  const std::string json(std::istreambuf_iterator<char>(file), {});
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string track = absl::StrCat("\"tid\":", rank + 1, ",");
    EXPECT_EQ(CountLines(json, {track, "\"ph\":\"b\"", "\"name\":\"exchange\""}), 1);
    EXPECT_EQ(CountLines(json, {track, "\"ph\":\"X\"", "\"name\":\"apply\""}), 1);
    for (int peer = 0; peer < kRanks; ++peer) {
      const std::string label = absl::StrCat("\"rank\":", peer, "}");
      const int to = GetParam() == MachineKind::kStar ? 2 * (peer != rank) : 6 * (peer == (rank + 1) % kRanks);
      const int from = GetParam() == MachineKind::kStar ? 2 * (peer != rank) : 6 * (rank == (peer + 1) % kRanks);
      EXPECT_EQ(CountLines(json, {track, "\"ph\":\"b\"", "\"name\":\"send\"", label}), to) << rank << peer;
      EXPECT_EQ(CountLines(json, {track, "\"ph\":\"b\"", "\"name\":\"receive\"", label}), from) << rank << peer;
    }
  }
}

// One rank of the largest job. Nothing travels: an operation completes when the test says so.
class NotingTransport final : public Transport {
 public:
  explicit NotingTransport(int rank) : rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return kWorldSizeMax; }
  int tag_max() const override { return 32767; }
  void PostSend(int peer, int tag, std::span<const std::byte>, Token token) override { Note(peer, tag, token, &sends); }
  void PostReceive(int peer, int tag, std::span<std::byte>, Token token) override { Note(peer, tag, token, &receives); }
  absl::Status Poll(std::vector<Token>&) override { return absl::OkStatus(); }
  void Wait(std::chrono::microseconds) override {}
  void Wake() override {}
  std::optional<Received> TryReceive(int, std::span<std::byte>) override { return std::nullopt; }

  std::set<std::pair<int, int>> sends, receives;  // peer and tag of each
  std::deque<Token> posted;

 private:
  void Note(int peer, int tag, Token token, std::set<std::pair<int, int>>* of) {
    ASSERT_TRUE(0 <= peer && peer < world_size() && peer != rank_) << peer;
    ASSERT_TRUE(16 <= tag && tag <= tag_max()) << tag;
    ASSERT_TRUE(of->emplace(peer, tag).second) << "rank " << peer << ", tag " << tag;
    posted.push_back(token);
  }
  const int rank_;
};

TEST(RankMachine, HasATagForEveryMessageOfTheLargestJob) {
  const ExampleJob job = {
      .element_count = ReductionBlockElements(kWorldSizeMax), .bucket_bytes = 1, .world_size = kWorldSizeMax};
  const BucketMap buckets = job.Buckets();
  const std::vector<float> gradient(job.element_count, 1.0f);
  for (const int rank : {0, 511, kWorldSizeMax - 1}) {
    for (const char* const kind : {"ring", "chain", "tree"}) {
      SCOPED_TRACE(testing::Message() << kind << ", rank " << rank);
      auto owned =
          OwnedSlices::Create({.slices = {OwnerMap::SplitChunks(buckets.world_size()).SliceOf(buckets.sum(0), rank)},
                               .element_count = job.element_count});
      CHECK_OK(owned);
      HostSliceOwner owner(*std::move(owned));
      NotingTransport transport(rank);
      std::vector<float> parameters(job.element_count);
      const RankMachineOptions options = {
          .buckets = &buckets, .owner = &owner, .parameters = parameters, .transport = &transport, .first_tag = 16};
      std::unique_ptr<BucketMachine> machine;
      if (kind == std::string("ring")) {
        machine = std::make_unique<RingMachine>(options);
      } else {
        machine = std::make_unique<StarMachine>(
            options, StarMachine::Job{.sum_order = kind == std::string("tree") ? SumOrder::kTree : SumOrder::kChain});
      }
      machine->Submit(0, 0, gradient);
      while (!transport.posted.empty()) {
        const Transport::Token token = transport.posted.front();
        transport.posted.pop_front();
        token.poster->OnCompletion(token.operation);
      }
      EXPECT_TRUE(machine->IsReady(0));
      EXPECT_TRUE(machine->IsIdle());
      EXPECT_EQ(transport.sends.size(), 2u * (kWorldSizeMax - 1));
      EXPECT_EQ(transport.receives.size(), 2u * (kWorldSizeMax - 1));
    }
  }
}

TEST(RankMachineDeathTest, RefusesABucketTwice) {
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2};
  MachineRanks ranks(job, {});
  const std::vector<float> gradient = job.Gradient(0, 0);
  ranks.machine(0).Submit(0, 0, gradient);
  EXPECT_DEATH(ranks.machine(0).Submit(0, 0, gradient), "submitted twice");
}

// Says that its parameters are a GPU's.
class OwnerOnGpu final : public HostSliceOwner {
 public:
  OwnerOnGpu(OwnedSlices owned, std::span<float> parameters)
      : HostSliceOwner(std::move(owned)), parameters_(parameters) {}
  std::span<float> own_parameters() override { return parameters_; }

 private:
  const std::span<float> parameters_;
};

// The ring would copy into the neighbour's memory what the GPU has not computed yet.
TEST(RingMachineDeathTest, FloatsOfAGpuAreNotSentThroughSharedMemory) {
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2};
  const BucketMap buckets = job.Buckets();
  auto owned = OwnedSlices::Create(
      {.slices = {OwnerMap::SplitChunks(2).SliceOf(buckets.sum(0), 0)}, .element_count = job.element_count});
  CHECK_OK(owned);
  std::vector<float> parameters(job.element_count);
  OwnerOnGpu owner(*std::move(owned), parameters);
  NotingTransport transport(0);
  std::vector<std::byte> memory(64);
  const RankMachineOptions options = {
      .buckets = &buckets, .owner = &owner, .parameters = parameters, .transport = &transport, .first_tag = 16};
  EXPECT_DEATH(RingMachine(options, {.own = memory, .right = memory}), "work on a GPU is enqueued");
}

}  // namespace
}  // namespace starring
