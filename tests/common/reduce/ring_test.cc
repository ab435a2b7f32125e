// The ring over messages and through memory of neighbours, with results apart from contributions and in their place.
#include "common/reduce/ring.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/memory.h"
#include "gtest/gtest.h"
#include "tests/common/reduce/carriers.h"
#include "tests/common/reduce/exclusive_transport.h"
#include "tests/common/reduce/queued_work.h"
#include "tests/common/transport/in_memory_transport.h"

namespace starring {
namespace {

constexpr int kPollsMax = 2'000'000;
constexpr float kBefore = 3.0f;  // results that are apart

// Adds half of a sum to what the result's place held before, if that is apart. Contributions are sent from where they
// are, or copied. Work is done at once, or when the ring calls Complete.
class HalvingSink final : public RingSink {
 public:
  struct Array {
    std::vector<float> contribution;
    std::vector<float> result;  // empty: results replace contributions
    bool is_ready = false;
    bool is_done = false;
  };
  enum class Sends { kInPlace, kCopies };
  enum class Works { kAtOnce, kQueued };
  HalvingSink(Sends sends, Works works) : sends_(sends), works_(works) {}

  std::vector<Array> arrays;  // by number
  int64_t allocated = 0;
  QueuedWork queue;

  std::span<float> Allocate(int64_t count) override {
    allocated += count;
    return memory_.emplace_back(count).span();
  }
  std::span<const float> Contribution(const RingSum& sum, ElementRange range) override {
    return sends_ == Sends::kInPlace ? Own(sum, range) : std::span<const float>();
  }
  void CopyContribution(const RingSum& sum, ElementRange range, std::span<float> out) override {
    const std::span<const float> own = Own(sum, range);
    Do(
        {std::as_bytes(own)}, {std::as_bytes(out)}, [own, out] { std::ranges::copy(own, out.begin()); },
        QueuedWork::Kind::kCopy);
  }
  void Add(const RingSum& sum, ElementRange range, std::span<float> partial) override {
    EXPECT_FALSE(arrays[sum.number].is_ready);
    const std::span<const float> own = Own(sum, range);
    Do({std::as_bytes(own), std::as_bytes(partial)}, {std::as_bytes(partial)}, [own, partial] {
      for (size_t i = 0; i < partial.size(); ++i) partial[i] += own[i];
    });
  }
  void Finish(const RingSum& sum, ElementRange range, std::span<float> partial) override {
    EXPECT_GT(range.size(), 0);
    Add(sum, range, partial);
    const std::span<float> result = Results(sum, range);
    const bool is_apart = !arrays[sum.number].result.empty();
    Do({std::as_bytes(partial)}, {std::as_bytes(partial), std::as_bytes(result)}, [partial, result, is_apart] {
      for (size_t i = 0; i < partial.size(); ++i) {
        const float half = std::exchange(partial[i], -1e30f) * 0.5f;
        result[i] = is_apart ? result[i] + half : half;
      }
    });
  }
  void Copy(std::span<const std::byte> from, std::span<std::byte> to) override {
    Do(
        {from}, {to}, [this, from, to] { RingSink::Copy(from, to); }, QueuedWork::Kind::kCopy);
  }
  void Complete() override { queue.Complete(); }
  std::span<std::byte> Result(const RingSum& sum, ElementRange range) override {
    return std::as_writable_bytes(Results(sum, range));
  }
  void OnReady(const RingSum& sum) override {
    EXPECT_TRUE(queue.is_empty()) << "the result is not complete";
    EXPECT_FALSE(std::exchange(arrays[sum.number].is_ready, true));
    // The user may overwrite the contribution from now on.
    if (!arrays[sum.number].result.empty()) std::ranges::fill(arrays[sum.number].contribution, 1e30f);
  }
  void OnDone(const RingSum& sum) override {
    EXPECT_TRUE(arrays[sum.number].is_ready);
    EXPECT_FALSE(std::exchange(arrays[sum.number].is_done, true));
  }

  const std::vector<float>& ResultOf(int64_t number) const {
    const Array& array = arrays[number];
    return array.result.empty() ? array.contribution : array.result;
  }

 private:
  std::span<const float> Own(const RingSum& sum, ElementRange range) const {
    return std::span<const float>(arrays[sum.number].contribution).subspan(range.begin, range.size());
  }
  std::span<float> Results(const RingSum& sum, ElementRange range) {
    Array& array = arrays[sum.number];
    return std::span(array.result.empty() ? array.contribution : array.result).subspan(range.begin, range.size());
  }

  void Do(QueuedWork::Memory reads, QueuedWork::Memory writes, std::function<void()> work,
          QueuedWork::Kind kind = QueuedWork::Kind::kOther) {
    if (works_ == Works::kAtOnce) return work();
    queue.Enqueue(kind, std::move(reads), std::move(writes), std::move(work));
  }

  const Sends sends_;
  const Works works_;
  std::vector<AlignedFloats> memory_;
};

struct Kind {
  const char* name = "";
  bool results_are_apart = true;
  HalvingSink::Sends sends = HalvingSink::Sends::kInPlace;
  int64_t message_bytes_max = 0;
  bool is_shared = false;
  HalvingSink::Works works = HalvingSink::Works::kAtOnce;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

// All ranks of a ring on one thread.
class Ranks {
 public:
  Ranks(const Kind& kind, int rank_count, std::vector<int64_t> counts, uint64_t seed,
        Carrier carrier = Carrier::kAnyOrder)
      : kind_(kind), counts_(std::move(counts)), random_(seed), world_(carrier, rank_count, seed) {
    for (int rank = 0; rank < rank_count; ++rank) {
      sinks_.push_back(std::make_unique<HalvingSink>(kind.sends, kind.works));
      auto transport = std::make_unique<ExclusiveTransport>(world_.Take(rank));
      transport->set_on_post([&queue = sinks_.back()->queue](const auto& posted) { queue.ExpectMayPost(posted); });
      transports_.push_back(std::move(transport));
      memories_.emplace_back(RingMemory::BytesNeeded(rank_count) / static_cast<int64_t>(sizeof(float)));
    }
    for (int rank = 0; rank < rank_count; ++rank) {
      Ring::Options options = {.transport = transports_[rank].get(),
                               .sink = sinks_[rank].get(),
                               .first_tag = 16,
                               .message_bytes_max = kind.message_bytes_max,
                               .sum_elements_max = std::ranges::max(counts_),
                               .results_are_apart = kind.results_are_apart,
                               .own = {},
                               .right = {}};
      if (kind.is_shared) {
        options.own = MemoryOf(rank);
        options.right = MemoryOf((rank + 1) % rank_count);
      }
      rings_.push_back(std::make_unique<Ring>(options));
    }
  }

  // Every rank submits its sums one by one, now and then between polls.
  void Run() {
    const auto sum_count = std::ssize(counts_);
    for (size_t rank = 0; rank < rings_.size(); ++rank) {
      for (int64_t number = 0; number < sum_count; ++number) {
        sinks_[rank]->arrays.push_back(
            {.contribution = ContributionOf(rank, number),
             .result = std::vector<float>(kind_.results_are_apart ? counts_[number] : 0, kBefore)});
      }
    }
    std::vector<int64_t> submitted(rings_.size(), 0);
    for (int poll = 0; poll < kPollsMax; ++poll) {
      const size_t rank = random_() % rings_.size();
      if (submitted[rank] < sum_count && random_() % 8 == 0) {
        const int64_t number = submitted[rank]++;
        rings_[rank]->Submit(
            {.number = number, .elements = {0, counts_[number]}, .tag_key = static_cast<uint64_t>(number)});
      }
      std::vector<Transport::Token> completed;
      CHECK_OK(transports_[rank]->Poll(completed));
      for (const Transport::Token& token : completed) token.poster->OnCompletion(token.operation);
      if (std::ranges::all_of(submitted, [&](int64_t count) { return count == sum_count; }) &&
          std::ranges::all_of(rings_, [](const auto& ring) { return ring->Oldest() == nullptr; })) {
        return;
      }
    }
    FAIL() << "the ranks wait for ever";
  }

  std::vector<float> Expected(int64_t number) const {
    const int rank_count = static_cast<int>(rings_.size());
    std::vector<std::vector<float>> terms;
    for (int rank = 0; rank < rank_count; ++rank) terms.push_back(ContributionOf(rank, number));
    std::vector<float> sums(counts_[number]);
    ForEachRun({0, counts_[number]}, counts_[number], {.world_size = rank_count},
               [&](ElementRange run, int first_rank) {
                 for (int64_t e = run.begin; e < run.end; ++e) {
                   sums[e] = terms[first_rank][e];
                   for (int i = 1; i < rank_count; ++i) sums[e] += terms[(first_rank + i) % rank_count][e];
                   sums[e] *= 0.5f;
                   if (kind_.results_are_apart) sums[e] = kBefore + sums[e];
                 }
               });
    return sums;
  }

  HalvingSink& sink(int rank) { return *sinks_[rank]; }
  Ring& ring(int rank) { return *rings_[rank]; }
  InMemoryNetwork& network() { return world_.network(); }

 private:
  RingMemory MemoryOf(int rank) {
    return RingMemory(std::as_writable_bytes(memories_[rank].span()), static_cast<int>(sinks_.size()));
  }
  std::vector<float> ContributionOf(size_t rank, int64_t number) const {
    std::mt19937 random(static_cast<uint32_t>(1000 * rank + number));
    std::vector<float> values(counts_[number]);
    for (float& value : values) value = static_cast<float>(random()) * 1e-9f - 2.0f;
    return values;
  }

  const Kind kind_;
  const std::vector<int64_t> counts_;
  std::mt19937_64 random_;
  World world_;
  std::vector<std::unique_ptr<HalvingSink>> sinks_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<AlignedFloats> memories_;
  std::vector<std::unique_ptr<Ring>> rings_;
};

void ExpectBits(Ranks& ranks, int rank_count, const std::vector<int64_t>& counts) {
  for (int64_t number = 0; number < std::ssize(counts); ++number) {
    const std::vector<float> expected = ranks.Expected(number);
    for (int rank = 0; rank < rank_count; ++rank) {
      EXPECT_TRUE(ranks.sink(rank).arrays[number].is_done);
      ASSERT_TRUE(ranks.sink(rank).ResultOf(number) == expected)
          << "rank " << rank << " of " << rank_count << ", " << counts[number] << " elements";
    }
  }
}

class RingTest : public testing::TestWithParam<Kind> {};
class RingCarrierTest : public testing::TestWithParam<std::tuple<Kind, Carrier>> {};

constexpr auto kCopies = HalvingSink::Sends::kCopies;
constexpr auto kQueued = HalvingSink::Works::kQueued;
constexpr int64_t kManyChunks = 4 * kChunkBytesMax;  // packs several blocks of few ranks, too
const auto kKinds =
    testing::Values(Kind{.name = "Apart"}, Kind{.name = "ApartPacked", .message_bytes_max = kChunkBytesMax},
                    Kind{.name = "ApartShared", .is_shared = true}, Kind{.name = "InPlace", .results_are_apart = false},
                    Kind{.name = "InPlacePacked", .results_are_apart = false, .message_bytes_max = kChunkBytesMax},
                    Kind{.name = "InPlaceShared", .results_are_apart = false, .is_shared = true},
                    Kind{.name = "Copies", .results_are_apart = false, .sends = kCopies},
                    Kind{.name = "CopiesShared", .results_are_apart = false, .sends = kCopies, .is_shared = true},
                    Kind{.name = "Queued", .works = kQueued},
                    Kind{.name = "QueuedPacked", .message_bytes_max = kManyChunks, .works = kQueued},
                    Kind{.name = "QueuedCopies", .results_are_apart = false, .sends = kCopies, .works = kQueued});
INSTANTIATE_TEST_SUITE_P(Kinds, RingTest, kKinds, testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Kinds, RingCarrierTest,
                         testing::Combine(kKinds, testing::Values(Carrier::kTcp, Carrier::kBoard)),
                         [](const auto& one) {
                           return testing::PrintToString(std::get<0>(one.param)) + "Over" +
                                  testing::PrintToString(std::get<1>(one.param));
                         });

TEST_P(RingCarrierTest, EverySumHasTheBitsOfTheChain) {
  const auto& [kind, carrier] = GetParam();
  constexpr int kRanks = 3;
  const int64_t block = ReductionBlockElements(kRanks);
  const std::vector<int64_t> counts = {3, block, 2 * block + 17, 9 * block, block};
  Ranks ranks(kind, kRanks, counts, 5, carrier);
  ranks.Run();
  ExpectBits(ranks, kRanks, counts);
}

// Fewer elements than ranks, a block, several with a short last one, and more blocks than are in flight.
TEST_P(RingTest, EverySumHasTheBitsOfTheChain) {
  for (const int rank_count : {2, 3, 5, 8}) {
    const int64_t block = ReductionBlockElements(rank_count);
    std::vector<int64_t> counts = {1, 3, 1'000, block, block + 1, 2 * block + 17};
    if (rank_count != 3) counts.push_back(9 * block);
    Ranks ranks(GetParam(), rank_count, counts, static_cast<uint64_t>(rank_count));
    ranks.Run();
    ExpectBits(ranks, rank_count, counts);
  }
}

TEST_P(RingTest, MovesTheLeastThatAnAllreduceCan) {
  constexpr int kRanks = 4;
  const int64_t block = ReductionBlockElements(kRanks);
  Ranks ranks(GetParam(), kRanks, {3 * block}, 1);
  ranks.Run();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ranks.ring(rank).bytes_sent(), 2 * 3 * block * 4 * (kRanks - 1) / kRanks);
    EXPECT_EQ(ranks.ring(rank).bytes_received(), ranks.ring(rank).bytes_sent());
  }
  const int64_t message = std::clamp(GetParam().message_bytes_max, kChunkBytesMax, 3 * kChunkBytesMax);
  EXPECT_EQ(ranks.network().message_bytes_max(), GetParam().is_shared ? 0 : message);
}

TEST_P(RingTest, HasNoMoreMemoryThanItNeeds) {
  for (const int rank_count : {2, 8}) {
    const int64_t block = ReductionBlockElements(rank_count);
    const Kind& kind = GetParam();
    Ranks ranks(kind, rank_count, {64 * block}, 1);
    const int64_t blocks = kind.message_bytes_max / ChunkBytesFor(rank_count);
    const bool is_for_all_chunks = !kind.results_are_apart || blocks > 1;
    const int64_t of_slot = is_for_all_chunks ? std::max<int64_t>(blocks, 1) * block : ChunkElements(rank_count);
    EXPECT_EQ(ranks.sink(0).allocated, kind.is_shared ? 0 : RingBlocksInFlightMax(rank_count) * of_slot);
  }
}

// A training: each round adds to one vector, and the next one begins as soon as the ring says that the sum is ready.
class RoundsSink final : public RingSink {
 public:
  RoundsSink(int64_t count, float contribution) : results(count, 1.0f), contribution_(count, contribution) {}
  std::vector<float> results;
  bool is_ready = true;

  std::span<float> Allocate(int64_t count) override { return memory_.emplace_back(count).span(); }
  std::span<const float> Contribution(const RingSum& /*sum*/, ElementRange range) override {
    return std::span<const float>(contribution_).subspan(range.begin, range.size());
  }
  void CopyContribution(const RingSum& sum, ElementRange range, std::span<float> out) override {
    std::ranges::copy(Contribution(sum, range), out.begin());
  }
  void Add(const RingSum& sum, ElementRange range, std::span<float> partial) override {
    const std::span<const float> own = Contribution(sum, range);
    for (size_t i = 0; i < partial.size(); ++i) partial[i] += own[i];
  }
  void Finish(const RingSum& sum, ElementRange range, std::span<float> partial) override {
    Add(sum, range, partial);
    for (size_t i = 0; i < partial.size(); ++i) results[range.begin + i] += partial[i];
  }
  std::span<std::byte> Result(const RingSum& /*sum*/, ElementRange range) override {
    return std::as_writable_bytes(std::span(results).subspan(range.begin, range.size()));
  }
  void OnReady(const RingSum& /*sum*/) override { is_ready = true; }
  void OnDone(const RingSum& /*sum*/) override {}

 private:
  std::vector<float> contribution_;
  std::vector<AlignedFloats> memory_;
};

// A slow right neighbour still takes a round's results when the left one sends partial sums of the next round.
TEST(Ring, PartialSumsDoNotArriveWhereResultsAreStillSent) {
  constexpr int kRanks = 5, kRounds = 40;
  constexpr int64_t kCount = 103;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    InMemoryNetwork network(kRanks, seed);
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<RoundsSink>> sinks;
    std::vector<std::unique_ptr<Transport>> transports;
    std::vector<std::unique_ptr<Ring>> rings;
    for (int rank = 0; rank < kRanks; ++rank) {
      sinks.push_back(std::make_unique<RoundsSink>(kCount, static_cast<float>(rank + 1)));
      transports.push_back(std::make_unique<ExclusiveTransport>(network.CreateTransport(rank)));
      rings.push_back(std::make_unique<Ring>(Ring::Options{.transport = transports.back().get(),
                                                           .sink = sinks.back().get(),
                                                           .first_tag = 16,
                                                           .sum_elements_max = kCount,
                                                           .own = {},
                                                           .right = {}}));
    }
    std::vector<int> begun(kRanks, 0);
    const auto is_over = [&] {
      return std::ranges::all_of(begun, [](int rounds) { return rounds == kRounds; }) &&
             std::ranges::all_of(rings, [](const auto& ring) { return ring->Oldest() == nullptr; });
    };
    for (int poll = 0; poll < kPollsMax && !is_over(); ++poll) {
      const size_t rank = random() % kRanks;
      if (sinks[rank]->is_ready && begun[rank] < kRounds) {
        sinks[rank]->is_ready = false;
        ++begun[rank];
        rings[rank]->Submit({.number = 0, .elements = {0, kCount}});
      }
      std::vector<Transport::Token> completed;
      CHECK_OK(transports[rank]->Poll(completed));
      for (const Transport::Token& token : completed) token.poster->OnCompletion(token.operation);
    }
    ASSERT_TRUE(is_over()) << "the ranks wait for ever";
    for (const auto& sink : sinks) {
      ASSERT_EQ(sink->results, std::vector<float>(kCount, 1.0f + kRounds * 15.0f)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace starring
