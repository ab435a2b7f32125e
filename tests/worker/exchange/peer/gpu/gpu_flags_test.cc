// Ranks whose GPUs wait for each other. Here one emulated GPU has the streams of all ranks, which go on by themselves,
// in an order that a seed decides.
#include "worker/exchange/peer/gpu/gpu_flags.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/host/sealed_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {
namespace {

constexpr int64_t kBucketElements = 600;
constexpr int kRounds = 11;

struct Rank {
  std::unique_ptr<SealedMemory> memory;  // a mapping of its own of the flags
  std::unique_ptr<CudaStream> stream;
  std::unique_ptr<CudaEvent> done;
  std::unique_ptr<DeviceBuffer> gradients, parameters;
  std::unique_ptr<GpuFlags> flags;
};

class GpuFlagsTest : public testing::Test {
 protected:
  ~GpuFlagsTest() override {
    ranks_.clear();
    device_.reset();
    cuda_emulation::Gpu() = {};
  }

  // `owners`: by bucket, how many of the first ranks have a part.
  void Begin(int ranks, std::vector<int> owners, uint64_t seed, bool is_ring = false) {
    ranks_.clear();
    device_.reset();
    cuda_emulation::Gpu() = {.async = true, .async_seed = seed};
    owner_counts_ = std::move(owners);
    device_ = CreateCudaDevice({}).value();
    const int64_t bytes = GpuFlags::Bytes(buckets(), ranks, is_ring);
    for (int r = 0; r < ranks; ++r) {
      Rank& rank = ranks_.emplace_back();
      rank.memory =
          r == 0 ? SealedMemory::Create(bytes).value()
                 : SealedMemory::Open(ranks_[0].memory->place(), bytes, SealedMemory::Access::kReadWrite).value();
      rank.stream = device_->CreateStream().value();
      rank.done = device_->CreateEvent().value();
      rank.gradients = device_->Allocate(elements() * kFloatBytes).value();
      rank.parameters = device_->Allocate(elements() * kFloatBytes).value();
      GpuFlags::Options options = {.device = device_.get(),
                                   .rank = r,
                                   .rank_count = ranks,
                                   .is_ring = is_ring,
                                   .memory = rank.memory->writable_bytes()};
      for (const int count : owner_counts_) {
        options.owners.emplace_back(ranks, false);
        std::fill_n(options.owners.back().begin(), count, true);
      }
      rank.flags = GpuFlags::Create(std::move(options)).value();
    }
  }

  int buckets() const { return static_cast<int>(owner_counts_.size()); }
  int64_t elements() const { return buckets() * kBucketElements; }

  CudaPeerUpdate UpdateOf(int rank, int bucket) {
    const int owners = owner_counts_[bucket];
    const int64_t begin = bucket * kBucketElements;
    CudaPeerUpdate update = {
        .rows = ElementRange{begin + rank * kBucketElements / owners, begin + (rank + 1) * kBucketElements / owners},
        .element_count = elements(),
        .reduction = {.order = SumOrder::kChain, .world_size = static_cast<int>(ranks_.size())},
        .rank = rank,
        .learning_rate = 1.0f};
    for (size_t other = 0; other < ranks_.size(); ++other) {
      update.gradients[other] = ranks_[other].gradients->floats();
      update.parameters[other] = ranks_[other].parameters->floats();
    }
    return update;
  }

  // The gradient of every element of rank r is value + r.
  void EnqueueGradient(int r, int bucket, float value) {
    Rank& rank = ranks_[r];
    const std::vector<float> gradient(kBucketElements, value + static_cast<float>(r));
    ASSERT_TRUE(rank.stream
                    ->CopyToDevice(gradient.data(), rank.gradients->floats() + bucket * kBucketElements,
                                   kBucketElements * kFloatBytes)
                    .ok());
  }

  void EnqueueRound(int r, int64_t round) {
    Rank& rank = ranks_[r];
    const int slot = StreamExchange::SlotOf(round);
    for (int b = 0; b < buckets(); ++b) {
      EnqueueGradient(r, b, static_cast<float>(10 * round + b));
      ASSERT_TRUE(rank.flags->Arrive(rank.stream.get(), slot, b).ok());
      if (!rank.flags->IsOwner(b)) continue;
      ASSERT_TRUE(rank.flags->AwaitArrivals(rank.stream.get(), slot, b).ok());
      ASSERT_TRUE(rank.flags->Update(rank.stream.get(), slot, b, nullptr, OptimizerConfig{}, UpdateOf(r, b)).ok());
    }
    ASSERT_TRUE(rank.flags->AwaitUpdates(rank.stream.get(), slot, 0, buckets()).ok());
    ASSERT_TRUE(rank.stream->Record(rank.done.get()).ok());
  }

  // Rank r's chunk of a bucket in a ring; that of the last rank is empty in the last bucket.
  ElementRange Chunk(int bucket, int r) const {
    const auto ranks = static_cast<int64_t>(ranks_.size()) - (bucket + 1 == buckets() && ranks_.size() > 2 ? 1 : 0);
    const int64_t begin = bucket * kBucketElements;
    if (r == ranks) return {begin, begin};
    return {begin + r * kBucketElements / ranks, begin + (r + 1) * kBucketElements / ranks};
  }

  // The hops of all buckets, or as many as that, after gradients that are on the stream.
  void EnqueueHops(int r, int slot, int hops_max = 1000) {
    Rank& rank = ranks_[r];
    GpuFlags& flags = *rank.flags;
    const RingSchedule& schedule = flags.schedule();
    const Rank& left = ranks_[schedule.Left(1)];
    for (int b = 0; b < buckets(); ++b) {
      ASSERT_TRUE(flags.Signal(rank.stream.get(), slot, b, 0).ok());
      for (int hop = 0; hop < schedule.hop_count(); ++hop) {
        if (hops_max-- == 0) return;
        ASSERT_TRUE(flags.AwaitLeft(rank.stream.get(), slot, b, hop).ok());
        const float* const from = hop == 0 ? left.gradients->floats() : left.parameters->floats();
        if (schedule.Updates(hop)) {
          const CudaPeerUpdate update = {.rows = Chunk(b, r),
                                         .element_count = elements(),
                                         .reduction = {.order = SumOrder::kTree, .world_size = 2},
                                         .gradients = {from, rank.gradients->floats()},
                                         .parameters = {rank.parameters->floats(), rank.parameters->floats()},
                                         .learning_rate = 1.0f};
          ASSERT_TRUE(
              flags.RunUpdate(rank.stream.get(), slot, b, hop, hop == 0, nullptr, OptimizerConfig{}, update).ok());
          continue;
        }
        const CudaPeerHop work = {.rows = Chunk(b, schedule.ChunkOf(hop)),
                                  .left = from,
                                  .own = schedule.Copies(hop) ? nullptr : rank.gradients->floats(),
                                  .out = rank.parameters->floats()};
        ASSERT_TRUE(flags.RunHop(rank.stream.get(), slot, b, hop, hop == 0, work).ok());
      }
    }
    ASSERT_TRUE(flags.AwaitRight(rank.stream.get(), slot).ok());
    ASSERT_TRUE(rank.stream->Record(rank.done.get()).ok());
  }

  void EnqueueRingRound(int r, int64_t round) {
    for (int b = 0; b < buckets(); ++b) EnqueueGradient(r, b, static_cast<float>(10 * round + b));
    EnqueueHops(r, StreamExchange::SlotOf(round));
  }

  // After kRounds rounds.
  std::vector<float> Expected() const {
    std::vector<float> expected(elements());
    for (int64_t e = 0; e < elements(); ++e) {
      for (int round = 0; round < kRounds; ++round) {
        for (size_t r = 0; r < ranks_.size(); ++r) {
          expected[e] -= static_cast<float>(10 * round + e / kBucketElements) + static_cast<float>(r);
        }
      }
    }
    return expected;
  }

  void ReleaseAll() {
    ranks_[0].flags->SayVoid();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      while (!IsDone(static_cast<int>(r), std::chrono::milliseconds(1))) {
        ASSERT_LT(std::chrono::steady_clock::now(), end) << r;
        ranks_[0].flags->Release();
      }
    }
  }

  bool IsDone(int r, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      if (ranks_[r].done->HasPassed().value()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return false;
  }

  std::vector<float> ParametersOf(int r) {
    std::vector<float> parameters(elements());
    device_->CopyToHost(ranks_[r].parameters->floats(), parameters.data(), elements() * kFloatBytes);
    CHECK(device_->Synchronize().ok());
    return parameters;
  }

  std::vector<int> owner_counts_;
  std::unique_ptr<CudaDevice> device_;
  std::vector<Rank> ranks_;
};

TEST_F(GpuFlagsTest, RoundsOfAllRanksGiveTheirSumsWithoutAHost) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (const int ranks : {2, 3, 8}) {
      // With few owners the word of updates has the bytes of those alone, and the other ranks see no arrivals.
      Begin(ranks, {ranks, 1, ranks - 1}, seed);
      for (int round = 0; round < kRounds; ++round) {
        for (int r = 0; r < ranks; ++r) EnqueueRound(r, round);
      }
      for (int r = 0; r < ranks; ++r) ASSERT_TRUE(IsDone(r)) << "rank " << r << " of " << ranks << ", seed " << seed;
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(ParametersOf(r), Expected()) << ranks << " ranks, seed " << seed;
      EXPECT_FALSE(ranks_[0].flags->FindNonFinite(0).has_value());
    }
  }
}

TEST_F(GpuFlagsTest, TheRankThatIsLateIsNamedAndAReleaseDrainsAllRounds) {
  Begin(3, {3, 2}, 1);
  for (const int r : {0, 2}) {
    // As many rounds as steps queue ahead.
    for (int round = 0; round < StreamExchange::kSlots; ++round) EnqueueRound(r, round);
  }
  EXPECT_FALSE(IsDone(0, std::chrono::milliseconds(50)));
  GpuFlags& flags = *ranks_[0].flags;
  const GpuFlags::Lag lag = flags.FindLag();
  EXPECT_EQ(lag.slot, 0);
  EXPECT_EQ(lag.bucket, 0);
  EXPECT_THAT(ranks_[1].flags->FindLag().ranks, testing::ElementsAre(1));  // it waits for no other rank
  EXPECT_THAT(lag.ranks, testing::ElementsAre(1));
  EXPECT_FALSE(flags.is_void());
  flags.SayVoid();
  EXPECT_TRUE(ranks_[2].flags->is_void());  // before its GPU goes on
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!(IsDone(0, std::chrono::milliseconds(1)) && IsDone(2, std::chrono::milliseconds(1)))) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    flags.Release();
  }
  // No owner has touched the memory of the rank that has gone.
  for (int r = 0; r < 3; ++r) EXPECT_EQ(ParametersOf(r), std::vector<float>(elements(), 0.0f)) << r;
}

// Two hosts give up at once, and a third one, which has not heard of it, goes on enqueueing. A word that a host has set
// may get a byte of that GPU in between.
TEST_F(GpuFlagsTest, ReleasesOfTwoHostsDrainAGpuThatStillTrains) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Begin(3, {3, 2, 1}, seed);
    for (const int r : {0, 1}) {
      for (int round = 0; round < StreamExchange::kSlots; ++round) EnqueueRound(r, round);
    }
    EXPECT_FALSE(IsDone(0, std::chrono::milliseconds(5)));
    std::atomic<bool> are_done = false;
    std::vector<std::thread> hosts;
    for (const int r : {0, 1}) {
      hosts.emplace_back([&, r] {
        ranks_[r].flags->SayVoid();
        while (!are_done) {
          ranks_[r].flags->Release();
          std::this_thread::sleep_for(GpuFlags::kReleasePause);
        }
      });
    }
    for (int round = 0; round < StreamExchange::kSlots; ++round) {
      EnqueueRound(2, round);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (int r = 0; r < 3; ++r) EXPECT_TRUE(IsDone(r)) << r << ", seed " << seed;
    are_done = true;
    for (std::thread& host : hosts) host.join();
    for (int r = 0; r < 3; ++r) EXPECT_TRUE(ranks_[r].flags->is_void());
  }
}

TEST_F(GpuFlagsTest, AGpuThatIsRoundsAheadOfItsHostStillNamesTheLateRank) {
  Begin(3, {3, 1}, 1);
  for (int round = 0; round < 7; ++round) EnqueueRound(0, round);
  for (int round = 0; round < 6; ++round) {
    for (const int r : {1, 2}) EnqueueRound(r, round);
  }
  EnqueueRound(1, 6);
  for (const int r : {0, 1}) EXPECT_FALSE(IsDone(r, std::chrono::milliseconds(50)));
  for (const int r : {0, 1}) {
    const GpuFlags::Lag lag = ranks_[r].flags->FindLag();
    EXPECT_EQ(lag.slot, 2);
    EXPECT_THAT(lag.ranks, testing::ElementsAre(2));
  }
  EXPECT_THAT(ranks_[2].flags->FindLag().ranks, testing::IsEmpty());
  EnqueueRound(2, 6);
  for (int r = 0; r < 3; ++r) EXPECT_TRUE(IsDone(r));
}

TEST_F(GpuFlagsTest, AnOwnerThatHasNotUpdatedIsLate) {
  Begin(2, {2}, 1);
  EnqueueRound(0, 0);
  ASSERT_TRUE(ranks_[1].flags->Arrive(ranks_[1].stream.get(), 0, 0).ok());
  EXPECT_FALSE(IsDone(0, std::chrono::milliseconds(50)));
  const GpuFlags::Lag lag = ranks_[0].flags->FindLag();
  EXPECT_THAT(lag.ranks, testing::ElementsAre(1));
  // Rank 1 has nothing to wait for but its own GPU.
  ASSERT_TRUE(ranks_[1].flags->Update(ranks_[1].stream.get(), 0, 0, nullptr, OptimizerConfig{}, UpdateOf(1, 0)).ok());
  EXPECT_TRUE(IsDone(0));
  EXPECT_THAT(ranks_[0].flags->FindLag().ranks, testing::IsEmpty());
}

TEST_F(GpuFlagsTest, AGradientThatIsNotFiniteIsFoundByItsRankAndSlot) {
  Begin(3, {3, 3}, 1);
  for (int r = 0; r < 3; ++r) EnqueueRound(r, 0);
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(IsDone(r));
  for (int r = 0; r < 3; ++r) {
    Rank& rank = ranks_[r];
    for (int b = 0; b < 2; ++b) {
      EnqueueGradient(r, b, r == 2 && b == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
      ASSERT_TRUE(rank.flags->Arrive(rank.stream.get(), 1, b).ok());
      ASSERT_TRUE(rank.flags->AwaitArrivals(rank.stream.get(), 1, b).ok());
      ASSERT_TRUE(rank.flags->Update(rank.stream.get(), 1, b, nullptr, OptimizerConfig{}, UpdateOf(r, b)).ok());
    }
    ASSERT_TRUE(rank.flags->AwaitUpdates(rank.stream.get(), 1, 0, 2).ok());
    ASSERT_TRUE(rank.stream->Record(rank.done.get()).ok());
  }
  for (int r = 0; r < 3; ++r) {
    ASSERT_TRUE(IsDone(r));
    EXPECT_FALSE(ranks_[r].flags->FindNonFinite(0).has_value());
    const std::optional<StreamExchange::NonFinite> found = ranks_[r].flags->FindNonFinite(1);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->rank, 2);
    EXPECT_TRUE(kBucketElements <= found->element && found->element < 2 * kBucketElements) << found->element;
  }
}

TEST_F(GpuFlagsTest, RoundsOfARingGiveItsSumsWithoutAHost) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (const int ranks : {2, 3, 8}) {
      Begin(ranks, {ranks, ranks, ranks}, seed, true);
      for (int round = 0; round < kRounds; ++round) {
        for (int r = 0; r < ranks; ++r) EnqueueRingRound(r, round);
      }
      for (int r = 0; r < ranks; ++r) ASSERT_TRUE(IsDone(r)) << "rank " << r << " of " << ranks << ", seed " << seed;
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(ParametersOf(r), Expected()) << ranks << " ranks, seed " << seed;
      EXPECT_FALSE(ranks_[0].flags->FindNonFinite(0).has_value());
      for (int r = 0; r < ranks; ++r) EXPECT_THAT(ranks_[r].flags->FindLag().ranks, testing::IsEmpty());
    }
  }
}

TEST_F(GpuFlagsTest, TheLateRankOfARingIsNamedByAllAndAReleaseDrains) {
  Begin(4, {4, 4}, 1, true);
  for (const int r : {0, 1, 3}) {
    for (int round = 0; round < StreamExchange::kSlots; ++round) EnqueueRingRound(r, round);
  }
  for (const int r : {0, 1, 3}) EXPECT_FALSE(IsDone(r, std::chrono::milliseconds(20)));
  // Rank 3 waits for it, rank 0 for rank 3, and rank 1 for rank 0.
  for (const int r : {0, 1, 3}) EXPECT_THAT(ranks_[r].flags->FindLag().ranks, testing::ElementsAre(2)) << r;
  EXPECT_THAT(ranks_[2].flags->FindLag().ranks, testing::ElementsAre(2));
  ReleaseAll();
}

TEST_F(GpuFlagsTest, ARankOfARingThatIsOneHopBehindIsLate) {
  Begin(3, {3}, 1, true);
  for (const int r : {0, 2}) EnqueueRingRound(r, 0);
  ASSERT_TRUE(ranks_[1].flags->Signal(ranks_[1].stream.get(), 0, 0, 0).ok());
  for (const int r : {0, 2}) EXPECT_FALSE(IsDone(r, std::chrono::milliseconds(20)));
  // It has its gradient, and the signal of rank 0 that its first hop needs.
  for (int r = 0; r < 3; ++r) EXPECT_THAT(ranks_[r].flags->FindLag().ranks, testing::ElementsAre(1)) << r;
  ReleaseAll();
}

// All buckets share a branch: rank 2 has given no signal of the second bucket, but it waits in the first one.
TEST_F(GpuFlagsTest, ARankOfARingThatWaitsInAnEarlierBucketIsNotLate) {
  Begin(3, {3, 3}, 1, true);
  for (const int r : {0, 2}) EnqueueRingRound(r, 0);
  for (int b = 0; b < 2; ++b) EnqueueGradient(1, b, static_cast<float>(b));
  EnqueueHops(1, 0, 3);
  for (const int r : {0, 2}) EXPECT_FALSE(IsDone(r, std::chrono::milliseconds(20)));
  for (int r = 0; r < 3; ++r) EXPECT_THAT(ranks_[r].flags->FindLag().ranks, testing::ElementsAre(1)) << r;
  ReleaseAll();
}

// Rank 3 is in the second round. Rank 2 is not: it waits for the last signal but one of rank 1 in the first.
TEST_F(GpuFlagsTest, ARankOfARingThatWaitsInAnEarlierRoundIsNotLate) {
  Begin(4, {4}, 1, true);
  for (const int r : {0, 2, 3}) {
    for (int round = 0; round < 2; ++round) EnqueueRingRound(r, round);
  }
  EnqueueGradient(1, 0, 0.0f);
  EnqueueHops(1, 0, ranks_[1].flags->schedule().hop_count() - 2);
  for (const int r : {0, 2, 3}) EXPECT_FALSE(IsDone(r, std::chrono::milliseconds(20)));
  for (int r = 0; r < 4; ++r) EXPECT_THAT(ranks_[r].flags->FindLag().ranks, testing::ElementsAre(1)) << r;
  ReleaseAll();
}

TEST_F(GpuFlagsTest, HopsOfAVoidRingTouchNoMemory) {
  Begin(3, {3}, 1, true);
  ranks_[0].flags->SayVoid();
  for (int r = 0; r < 3; ++r) EnqueueRingRound(r, 0);
  ReleaseAll();
  for (int r = 0; r < 3; ++r) EXPECT_EQ(ParametersOf(r), std::vector<float>(elements(), 0.0f)) << r;
}

// Partial sums with a NaN of another rank pass through all of them.
TEST_F(GpuFlagsTest, ANonFiniteGradientOfARingIsFoundByItsRankInEveryChunk) {
  for (const int ranks : {2, 3, 4}) {
    for (int poisoned = 0; poisoned < ranks; ++poisoned) {
      Begin(ranks, {ranks}, 1, true);
      for (int chunk = 0; chunk + 1 < ranks + (ranks == 2); ++chunk) {
        const int slot = chunk % StreamExchange::kSlots;
        for (int r = 0; r < ranks; ++r) {
          EnqueueGradient(r, 0, 1.0f);
          if (r == poisoned) {
            const float nan = std::numeric_limits<float>::quiet_NaN();
            ASSERT_TRUE(
                ranks_[r]
                    .stream->CopyToDevice(&nan, ranks_[r].gradients->floats() + Chunk(0, chunk).begin + 1, kFloatBytes)
                    .ok());
          }
          EnqueueHops(r, slot);
        }
        for (int r = 0; r < ranks; ++r) {
          ASSERT_TRUE(IsDone(r));
          const std::optional<StreamExchange::NonFinite> found = ranks_[r].flags->FindNonFinite(slot);
          ASSERT_TRUE(found.has_value());
          EXPECT_EQ(found->rank, poisoned) << "chunk " << chunk << " of " << ranks;
          EXPECT_EQ(found->element, Chunk(0, chunk).begin + 1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace starring
