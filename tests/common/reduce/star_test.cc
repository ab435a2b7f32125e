// The star with ranks and with servers as owners, over messages and through memory of the owners, with every plan.
#include "common/reduce/star.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "gtest/gtest.h"
#include "tests/common/reduce/carriers.h"
#include "tests/common/reduce/exclusive_transport.h"
#include "tests/common/reduce/queued_work.h"
#include "tests/common/transport/in_memory_transport.h"

namespace starring {
namespace {

constexpr int kPollsMax = 1'000'000;
constexpr float kBefore = 3.0f;
constexpr float kUsedUp = 1e30f;
constexpr float kAnswered = 1.0f;  // with answers_differ: this much more than the record

enum class Owners { kChunks, kRanges };
struct Kind {
  const char* name = "";
  Order::Plan plan = Order::Plan::kAll;
  Owners owners = Owners::kRanges;
  int64_t message_bytes_max = 0;
  bool is_shared = false;
  int nodes = 1;  // of every rank
  int server_count = 0;
  bool servers_keep_results = false;
  bool finishes_later = false;
  bool answers_differ = false;
  bool contributions_vary = false;
  bool queues = false;  // the sink's work, until Complete
  bool packs_together = false;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

std::span<float> Floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<const float> Floats(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

float TreeSum(std::span<const float> terms) {
  if (terms.size() == 1) return terms[0];
  const int middle = TreeMiddle({0, static_cast<int>(terms.size())});
  return TreeSum(terms.first(middle)) + TreeSum(terms.subspan(middle));
}

float ChainSum(const std::vector<float>& terms, int first) {
  float sum = terms[first];
  for (size_t i = 1; i < terms.size(); ++i) sum += terms[(first + i) % terms.size()];
  return sum;
}

// The result of a sum is half of it and what its place held before. At a server it is the half.
class HalvingSink final : public StarSink {
 public:
  struct Array {
    std::vector<std::vector<float>> contributions;  // by node; none at a server
    std::vector<float> result;
    bool is_ready = false;
    int done_count = 0;
  };
  std::vector<Array> arrays;  // by number
  int64_t allocated = 0;
  QueuedWork queue;

  std::span<std::byte> Allocate(int64_t bytes) override {
    allocated += bytes;
    return std::as_writable_bytes(memory_.emplace_back(bytes / static_cast<int64_t>(sizeof(float))).span());
  }
  std::span<const std::byte> Contribution(const StarSum& sum, int node, ElementRange range) override {
    EXPECT_FALSE(arrays[sum.number].is_ready);
    std::span<const float> values =
        std::span(arrays[sum.number].contributions[node]).subspan(range.begin, range.size());
    // The code of the kind whose contributions vary: zeros at the end are left out.
    while (kind.contributions_vary && !values.empty() && values.back() == 0.0f)
      values = values.first(values.size() - 1);
    return std::as_bytes(values);
  }
  void OnContribution(const StarSum&, int, std::span<const std::byte> contribution) override {
    lengths_[contribution.data()] = std::ssize(contribution) / static_cast<int64_t>(sizeof(float));
  }
  std::span<std::byte> Result(const StarSum& sum, ElementRange range) override {
    return std::as_writable_bytes(std::span(arrays[sum.number].result).subspan(range.begin, range.size()));
  }
  void Add(const StarSum& /*sum*/, std::span<const std::byte> from, std::span<std::byte> into) override {
    ASSERT_EQ(from.size(), into.size());
    Do({from, into}, {into}, [from, into] {
      for (size_t i = 0; i < Floats(into).size(); ++i) Floats(into)[i] += Floats(from)[i];
    });
  }
  Finished FinishParts(const StarSum& sum, const Output& output, const Parts& parts) override {
    CHECK_EQ(std::ssize(Floats(parts.part)), output.range.size());
    CHECK_EQ(parts.part.size(), parts.other.size());
    Do({parts.part, parts.other}, {parts.part, output.record}, [this, sum, output, parts] {
      for (int64_t i = 0; i < output.range.size(); ++i) {
        const float total = std::exchange(Floats(parts.part)[i], kUsedUp) + Floats(parts.other)[i];
        Store(sum, total, Floats(output.record)[i]);
      }
    });
    CopyToAnswer(output);
    return Finished::kNow;
  }
  Finished FinishAll(const StarSum& sum, const Output& output, std::span<std::byte* const> contributions) override {
    const std::vector<std::byte*> kept(contributions.begin(), contributions.end());
    if (!kind.finishes_later) {
      QueuedWork::Memory reads;
      for (const std::byte* const one : kept) reads.emplace_back(one, output.record.size());
      Do(std::move(reads), {output.record}, [this, sum, output, kept] { MakeRecord(sum, output, kept); });
      CopyToAnswer(output);
      ChangeAnswer(output);
      return Finished::kNow;
    }
    later.push_back({.piece = output.piece, .make = [this, sum, output, kept] {
                       MakeRecord(sum, output, kept);
                       CopyToAnswer(output);
                       ChangeAnswer(output);
                     }});
    return Finished::kLater;
  }
  void MakeRecord(const StarSum& sum, const Output& output, const std::vector<std::byte*>& contributions) {
    const ElementRange range = output.range;
    std::vector<float> terms(contributions.size());
    const auto count = static_cast<int64_t>(terms.size());
    const ReductionOrder order = {.order = chain_elements > 0 ? SumOrder::kChain : SumOrder::kTree,
                                  .world_size = static_cast<int>(count)};
    const int64_t elements = std::max(chain_elements, range.end);
    ForEachRun(range, elements, order, [&](ElementRange run, int first) {
      for (int64_t e = run.begin; e < run.end; ++e) {
        for (int64_t i = 0; i < count; ++i) {
          const auto length = lengths_.find(contributions[i]);
          const bool is_left_out =
              kind.contributions_vary && length != lengths_.end() && e - range.begin >= length->second;
          terms[i] = is_left_out ? 0.0f : reinterpret_cast<const float*>(contributions[i])[e - range.begin];
        }
        const float total = chain_elements > 0 ? ChainSum(terms, first) : TreeSum(terms);
        Store(sum, total, Floats(output.record)[e - range.begin]);
      }
    });
  }
  void ChangeAnswer(const Output& output) const {
    for (float& value : Floats(output.answer)) value += kind.answers_differ ? kAnswered : 0.0f;
  }
  void Copy(std::span<const std::byte> from, std::span<std::byte> to) override {
    Do(
        {from}, {to}, [this, from, to] { StarSink::Copy(from, to); }, QueuedWork::Kind::kCopy);
  }
  void Complete() override { queue.Complete(); }
  void OnReady(const StarSum& sum) override {
    Array& array = arrays[sum.number];
    EXPECT_TRUE(queue.is_empty()) << "the result is not complete";
    EXPECT_FALSE(std::exchange(array.is_ready, true));
    // The user may overwrite the contributions from now on.
    for (std::vector<float>& contribution : array.contributions) std::ranges::fill(contribution, kUsedUp);
  }
  void OnDone(const StarSum& sum) override { ++arrays[sum.number].done_count; }

  Kind kind;
  int64_t chain_elements = 0;  // of the sum in flight, if its order is a chain
  // With finishes_later: ranges that are not finished.
  struct Later {
    int piece = 0;
    std::function<void()> make;
  };
  std::vector<Later> later;

 private:
  void Do(QueuedWork::Memory reads, QueuedWork::Memory writes, std::function<void()> work,
          QueuedWork::Kind of = QueuedWork::Kind::kOther) {
    if (!kind.queues) return work();
    queue.Enqueue(of, std::move(reads), std::move(writes), std::move(work));
  }
  void Store(const StarSum& sum, float total, float& result) const {
    const float before = arrays[sum.number].contributions.empty() ? kBefore : result;
    result = before + total * 0.5f;
  }

  std::vector<AlignedFloats> memory_;
  std::map<const std::byte*, int64_t> lengths_;  // elements of the contribution at a place
};

// All processes of a star on one thread.
class Processes {
 public:
  static constexpr int kSlots = 3;

  struct Options {
    int slots = kSlots;
    ExclusiveTransport::LateSend late;
    Carrier carrier = Carrier::kAnyOrder;
    int rounds = 1;  // of all sums; each begins where the sum of the round before is ready
  };
  Processes(const Kind& kind, int rank_count, std::vector<int64_t> counts, uint64_t seed)
      : Processes(kind, rank_count, std::move(counts), seed, Options()) {}
  Processes(const Kind& kind, int rank_count, std::vector<int64_t> counts, uint64_t seed, const Options& options)
      : kind_(kind),
        rank_count_(rank_count),
        slots_(options.slots),
        rounds_(options.rounds),
        counts_(std::move(counts)),
        random_(seed),
        world_(options.carrier, rank_count + kind.server_count, seed) {
    const ExclusiveTransport::LateSend& late = options.late;
    for (int i = 0; i < process_count(); ++i) {
      sinks_.push_back(std::make_unique<HalvingSink>());
      sinks_.back()->kind = kind_;
      if (kind.owners == Owners::kChunks && kind.plan == Order::Plan::kChain) {
        sinks_.back()->chain_elements = counts_[0];
      }
      // The rank after the owner, whose contribution is the first.
      const bool is_late = late.peer >= 0 && i == (late.peer + 1) % rank_count;
      auto transport =
          std::make_unique<ExclusiveTransport>(world_.Take(i), is_late ? late : ExclusiveTransport::LateSend());
      transport->set_on_post([&queue = sinks_.back()->queue](const auto& posted) { queue.ExpectMayPost(posted); });
      transports_.push_back(std::move(transport));
      memories_.emplace_back(kSlots * StarMemory::SlotBytes(rank_count, kind.message_bytes_max) / 4);
    }
    for (int i = 0; i < process_count(); ++i) stars_.push_back(std::make_unique<Star>(OptionsOf(i)));
  }

  // Every process submits its sums one by one, now and then between polls.
  void Run() {
    for (int i = 0; i < process_count(); ++i) {
      for (const int64_t count : counts_) {
        sinks_[i]->arrays.push_back({.contributions = {}, .result = std::vector<float>(count, kBefore)});
      }
    }
    const int64_t sum_count = rounds_ * std::ssize(counts_);
    std::vector<int64_t> submitted(process_count(), 0);
    for (int poll = 0; poll < kPollsMax; ++poll) {
      const int i = static_cast<int>(random_() % process_count());
      if (MaySubmit(i, submitted[i]) && random_() % 8 == 0) SubmitAt(i, submitted[i]++);
      std::vector<Transport::Token> completed;
      CHECK_OK(transports_[i]->Poll(completed));
      for (const Transport::Token& token : completed) token.poster->OnCompletion(token.operation);
      FinishOne(i);
      if (std::ranges::all_of(submitted, [&](int64_t count) { return count == sum_count; }) &&
          std::ranges::all_of(stars_, [](const auto& star) { return star->Oldest() == nullptr; })) {
        return;
      }
    }
    FAIL() << "the processes wait for ever";
  }

  std::vector<float> Expected(int64_t number) const {
    std::vector<std::vector<float>> terms;
    for (int rank = 0; rank < rank_count_; ++rank) {
      for (int node = 0; node < kind_.nodes; ++node) terms.push_back(ContributionOf(rank, node, number));
    }
    std::vector<float> sums(counts_[number]);
    const bool is_chain = kind_.plan == Order::Plan::kChain;
    ForEachRun({0, counts_[number]}, counts_[number],
               {.order = is_chain ? SumOrder::kChain : SumOrder::kTree, .world_size = rank_count_},
               [&](ElementRange run, int first) {
                 std::vector<float> of_element(terms.size());
                 for (int64_t e = run.begin; e < run.end; ++e) {
                   for (size_t i = 0; i < terms.size(); ++i) of_element[i] = terms[i][e];
                   const float total = is_chain ? ChainSum(of_element, first) : TreeSum(of_element);
                   sums[e] = kBefore;
                   for (int round = 0; round < rounds_; ++round) sums[e] += total * 0.5f;
                   if (kind_.answers_differ) sums[e] += kAnswered;
                 }
               });
    return sums;
  }

  int process_count() const { return rank_count_ + kind_.server_count; }
  HalvingSink& sink(int process) { return *sinks_[process]; }
  Star& star(int process) { return *stars_[process]; }
  InMemoryNetwork& network() { return world_.network(); }

 private:
  int owner_count() const { return kind_.server_count > 0 ? kind_.server_count : rank_count_; }
  OwnerMap owners() const {
    return kind_.owners == Owners::kChunks ? OwnerMap::JoinedChunks(rank_count_) : OwnerMap::Ranges(owner_count());
  }

  Star::Options OptionsOf(int process) {
    const int64_t chunk_bytes = ChunkBytesFor(rank_count_);
    const int64_t blocks = std::max<int64_t>(kind_.message_bytes_max / chunk_bytes, 1);
    const bool is_owner = kind_.server_count == 0 || process >= rank_count_;
    Star::Options options = {.transport = transports_[process].get(),
                             .sink = sinks_[process].get(),
                             .server_count = kind_.server_count,
                             .first_tag = 16,
                             .contributors = {},
                             .plan = kind_.plan,
                             .message_bytes_max = kind_.message_bytes_max,
                             .sizes = {.piece_bytes_max = kind_.message_bytes_max},
                             .slot_count = slots_,
                             .packs_together = kind_.packs_together,
                             .owners_have_results = kind_.server_count == 0 || kind_.servers_keep_results,
                             .answers_differ = kind_.answers_differ,
                             .contributions_vary = kind_.contributions_vary,
                             .memory = {},
                             .shared = {},
                             .is_shared = kind_.is_shared && is_owner};
    if (kind_.owners == Owners::kChunks) {
      options.sizes = {.piece_bytes_max = blocks * chunk_bytes,
                       .joined_bytes_max = std::max<int64_t>(2 * OwnerMap::kSliceBytesMin, 2 * chunk_bytes),
                       .have_several_ranges = blocks > 1};
    }
    for (int rank = 0; rank < rank_count_; ++rank) {
      for (int node = 0; node < kind_.nodes; ++node) options.contributors.push_back({.rank = rank, .node = node});
    }
    if (!kind_.is_shared) return options;
    if (is_owner) options.memory = MemoryOf(process);
    for (int owner = 0; process < rank_count_ && owner < owner_count(); ++owner) {
      options.shared.push_back(MemoryOf(kind_.server_count > 0 ? rank_count_ + owner : owner));
    }
    return options;
  }

  StarMemory MemoryOf(int process) {
    return StarMemory(std::as_writable_bytes(memories_[process].span()), kSlots,
                      StarMemory::PlaceBytes(kind_.message_bytes_max));
  }

  // Any of what waits, now and then.
  void FinishOne(int process) {
    std::vector<HalvingSink::Later>& later = sinks_[process]->later;
    if (later.empty() || random_() % 4 != 0) return;
    std::swap(later[random_() % later.size()], later.back());
    const HalvingSink::Later one = std::move(later.back());
    later.pop_back();
    one.make();
    stars_[process]->OnFinished(one.piece);
  }

  bool MaySubmit(int process, int64_t submitted) const {
    const auto count = std::ssize(counts_);
    return submitted < rounds_ * count && (submitted < count || sinks_[process]->arrays[submitted % count].is_ready);
  }

  void SubmitAt(int process, int64_t submitted) {
    const int64_t number = submitted % std::ssize(counts_);
    HalvingSink::Array& array = sinks_[process]->arrays[number];
    array.is_ready = false;
    array.contributions.clear();
    for (int node = 0; process < rank_count_ && node < kind_.nodes; ++node) {
      array.contributions.push_back(ContributionOf(process, node, number));
    }
    const StarSum sum = {.number = number,
                         .elements = {0, counts_[number]},
                         .owners = owners(),
                         .tag_key = static_cast<uint64_t>(number)};
    const bool is_server = process >= rank_count_;
    if (is_server &&
        owners().RangeOf({.elements = sum.elements, .number = number}, process - rank_count_).size() == 0) {
      return;
    }
    stars_[process]->Submit(sum);
  }

  std::vector<float> ContributionOf(int rank, int node, int64_t number) const {
    std::mt19937 random(static_cast<uint32_t>(10'000 * rank + 1'000 * node + number));
    std::vector<float> values(counts_[number]);
    for (float& value : values) value = static_cast<float>(random()) * 1e-9f - 2.0f;
    for (int64_t e = 0; kind_.contributions_vary && e < counts_[number]; ++e) {
      if ((e / 1000 + rank) % 3 == 0) values[e] = 0.0f;
    }
    return values;
  }

  const Kind kind_;
  const int rank_count_;
  const int slots_;
  const int rounds_;
  const std::vector<int64_t> counts_;
  std::mt19937_64 random_;
  World world_;
  std::vector<std::unique_ptr<HalvingSink>> sinks_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<AlignedFloats> memories_;
  std::vector<std::unique_ptr<Star>> stars_;
};

void ExpectBits(Processes& processes, int rank_count, const std::vector<int64_t>& counts, int rounds = 1) {
  for (int64_t number = 0; number < std::ssize(counts); ++number) {
    const std::vector<float> expected = processes.Expected(number);
    for (int rank = 0; rank < rank_count; ++rank) {
      EXPECT_EQ(processes.sink(rank).arrays[number].done_count, rounds);
      ASSERT_TRUE(processes.sink(rank).arrays[number].result == expected)
          << "rank " << rank << " of " << rank_count << ", " << counts[number] << " elements";
    }
  }
}

class StarTest : public testing::TestWithParam<Kind> {};
class VaryingStarTest : public testing::TestWithParam<std::tuple<Kind, Carrier>> {};
class StarCarrierTest : public testing::TestWithParam<std::tuple<Kind, Carrier>> {};

constexpr int64_t kMessage = 16 << 10;
constexpr int64_t kManyChunks = 4 * kChunkBytesMax;  // packs several blocks of few ranks, too
const auto kKinds = testing::Values(
    Kind{.name = "Chain", .plan = Order::Plan::kChain, .owners = Owners::kChunks},
    Kind{.name = "ChainPacked",
         .plan = Order::Plan::kChain,
         .owners = Owners::kChunks,
         .message_bytes_max = kChunkBytesMax},
    Kind{.name = "Tree", .plan = Order::Plan::kTree, .owners = Owners::kChunks},
    Kind{.name = "TreePacked",
         .plan = Order::Plan::kTree,
         .owners = Owners::kChunks,
         .message_bytes_max = kChunkBytesMax},
    Kind{.name = "TreeOfRanges", .plan = Order::Plan::kTree, .message_bytes_max = kMessage},
    Kind{.name = "AllOfChunks", .owners = Owners::kChunks},
    Kind{.name = "AllPacked", .owners = Owners::kChunks, .message_bytes_max = kChunkBytesMax},
    Kind{.name = "All", .message_bytes_max = kMessage},
    Kind{.name = "AllShared", .message_bytes_max = kMessage, .is_shared = true},
    Kind{.name = "Nodes", .message_bytes_max = kMessage, .nodes = 3},
    Kind{.name = "NodesOfChunks", .owners = Owners::kChunks, .nodes = 2},
    Kind{.name = "OneServer", .message_bytes_max = kMessage, .server_count = 1},
    Kind{.name = "Servers", .message_bytes_max = kMessage, .nodes = 2, .server_count = 3},
    Kind{.name = "ServersKeepResults", .message_bytes_max = kMessage, .server_count = 3, .servers_keep_results = true},
    Kind{.name = "ServersShared", .message_bytes_max = kMessage, .is_shared = true, .server_count = 3},
    Kind{.name = "AllFinishedLater", .message_bytes_max = kMessage, .finishes_later = true},
    Kind{.name = "PackedFinishedLater",
         .owners = Owners::kChunks,
         .message_bytes_max = kChunkBytesMax,
         .finishes_later = true},
    Kind{.name = "ServersFinishLater", .message_bytes_max = kMessage, .server_count = 3, .finishes_later = true},
    Kind{.name = "ServersAnswerOtherwise",
         .message_bytes_max = kMessage,
         .server_count = 3,
         .servers_keep_results = true,
         .answers_differ = true},
    Kind{.name = "ChainQueued", .plan = Order::Plan::kChain, .owners = Owners::kChunks, .queues = true},
    Kind{.name = "TreePackedQueued",
         .plan = Order::Plan::kTree,
         .owners = Owners::kChunks,
         .message_bytes_max = kManyChunks,
         .queues = true},
    Kind{.name = "AllQueued", .message_bytes_max = kMessage, .queues = true},
    Kind{.name = "AllPackedQueued",
         .owners = Owners::kChunks,
         .message_bytes_max = kManyChunks,
         .queues = true,
         .packs_together = true});
INSTANTIATE_TEST_SUITE_P(Kinds, StarTest, kKinds, testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Kinds, StarCarrierTest,
                         testing::Combine(kKinds, testing::Values(Carrier::kTcp, Carrier::kBoard)),
                         [](const auto& one) {
                           return testing::PrintToString(std::get<0>(one.param)) + "Over" +
                                  testing::PrintToString(std::get<1>(one.param));
                         });

TEST_P(StarCarrierTest, EverySumHasTheBitsOfItsOrder) {
  const auto& [kind, carrier] = GetParam();
  constexpr int kRanks = 3;
  const int64_t block = ReductionBlockElements(kRanks);
  // Several sums of one length follow each other in every slot.
  const std::vector<int64_t> counts(4, block + 17);
  Processes processes(kind, kRanks, counts, 5, {.carrier = carrier});
  processes.Run();
  ExpectBits(processes, kRanks, counts);
}

// Fewer elements than ranks, a block, several with a short last one, and more pieces than are in flight. A chain of
// several chunks depends on the length of the vector, so then one length is tried at a time.
TEST_P(StarTest, EverySumHasTheBitsOfItsOrder) {
  for (const int rank_count : {2, 3, 5, 8}) {
    const int64_t block = ReductionBlockElements(rank_count);
    const std::vector<int64_t> all = {3, 9'000, block, 2 * block + 17};
    std::vector<std::vector<int64_t>> jobs = {all};
    if (GetParam().plan == Order::Plan::kChain) {
      jobs.clear();
      for (const int64_t count : all) jobs.push_back({count, count});
    }
    for (const std::vector<int64_t>& counts : jobs) {
      Processes processes(GetParam(), rank_count, counts, static_cast<uint64_t>(rank_count));
      processes.Run();
      ExpectBits(processes, rank_count, counts);
    }
  }
}

// The messages of a board have fixed lengths.
INSTANTIATE_TEST_SUITE_P(
    Kinds, VaryingStarTest,
    testing::Combine(testing::Values(Kind{.name = "All", .message_bytes_max = kMessage, .contributions_vary = true},
                                     Kind{.name = "Servers",
                                          .message_bytes_max = kMessage,
                                          .nodes = 2,
                                          .server_count = 3,
                                          .contributions_vary = true}),
                     testing::Values(Carrier::kAnyOrder, Carrier::kTcp)),
    [](const auto& one) {
      return testing::PrintToString(std::get<0>(one.param)) + "Over" + testing::PrintToString(std::get<1>(one.param));
    });

TEST_P(VaryingStarTest, AShortContributionIsNotReadBeyondItsEnd) {
  const auto& [kind, carrier] = GetParam();
  constexpr int kRanks = 3;
  const std::vector<int64_t> counts = {3, 9'000, 40'000, 40'000};
  Processes processes(kind, kRanks, counts, 7, {.carrier = carrier});
  processes.Run();
  ExpectBits(processes, kRanks, counts);
  Kind plain = kind;
  plain.contributions_vary = false;
  Processes whole(plain, kRanks, counts, 7, {.carrier = carrier});
  whole.Run();
  EXPECT_LT(processes.star(0).bytes_sent(), whole.star(0).bytes_sent());
}

// The owner keeps the record, and the workers get the answer.
TEST_P(StarTest, ARecordStaysWithItsOwner) {
  const Kind& kind = GetParam();
  if (!kind.servers_keep_results) return;
  constexpr int kRanks = 3;
  const std::vector<int64_t> counts = {40'000};
  Processes processes(kind, kRanks, counts, 1);
  processes.Run();
  std::vector<float> expected = processes.Expected(0);
  for (float& value : expected) value -= kind.answers_differ ? kAnswered : 0.0f;
  for (int server = 0; server < kind.server_count; ++server) {
    const ElementRange range =
        OwnerMap::Ranges(kind.server_count).RangeOf({.elements = {0, counts[0]}, .number = 0}, server);
    const std::vector<float>& result = processes.sink(kRanks + server).arrays[0].result;
    for (int64_t e = range.begin; e < range.end; ++e) ASSERT_NEAR(result[e], expected[e], 1e-5) << server << " " << e;
  }
}

// A rank begins a sum again when it is ready. The result of the round before may still be on its way to others then,
// from the place at which the new one is made.
TEST_P(StarTest, AResultIsNotReplacedBeforeItHasLeft) {
  if (GetParam().server_count > 0) return;  // servers are told about sums by their user
  constexpr int kRanks = 3;
  constexpr int kRounds = 4;
  const std::vector<int64_t> counts = {ReductionBlockElements(kRanks) + 17};
  Processes processes(GetParam(), kRanks, counts, 1, {.rounds = kRounds});
  processes.Run();
  ExpectBits(processes, kRanks, counts, kRounds);
}

// A worker sends each byte that others own once for each node, and gets it once.
TEST_P(StarTest, MovesNoMoreThanItMust) {
  constexpr int kRanks = 4;
  const Kind& kind = GetParam();
  const int64_t count = 2 * ReductionBlockElements(kRanks);
  Processes processes(kind, kRanks, {count}, 1);
  processes.Run();
  const int64_t bytes = kind.server_count > 0 ? count * 4 : count * 4 * (kRanks - 1) / kRanks;
  for (int rank = 0; rank < kRanks; ++rank) {
    const int64_t answered = kind.server_count > 0 ? 0 : bytes;
    const int64_t taken = answered * kind.nodes;
    EXPECT_EQ(processes.star(rank).bytes_sent(), bytes * kind.nodes + answered) << rank;
    EXPECT_EQ(processes.star(rank).bytes_received(), bytes + taken) << rank;
  }
  const int64_t message = kind.owners == Owners::kChunks
                              ? std::clamp(kind.message_bytes_max, ChunkBytesFor(kRanks), count * 4 / kRanks)
                              : kind.message_bytes_max;
  EXPECT_EQ(processes.network().message_bytes_max(), kind.is_shared ? 0 : message);
}

// One contribution is late by many strides. Meanwhile its owner contributes to later strides, which others cannot
// receive before they have the owner's answer. That must leave all the same.
TEST(StarDeadlockTest, AnAnswerDoesNotWaitForContributionsToLaterStrides) {
  constexpr int kRanks = 8;
  for (const Order::Plan plan : {Order::Plan::kChain, Order::Plan::kTree}) {
    SCOPED_TRACE(plan == Order::Plan::kChain ? "chain" : "tree");
    const Kind kind = {.name = "Packed", .plan = plan, .owners = Owners::kChunks, .message_bytes_max = kChunkBytesMax};
    Processes processes(kind, kRanks, {5 * kRanks * kChunkElementsMax}, 3,
                        {.slots = 2, .late = {.peer = 0, .polls = 3'000}});
    processes.Run();
    ASSERT_TRUE(processes.sink(kRanks - 1).arrays[0].result == processes.Expected(0));
  }
}

}  // namespace
}  // namespace starring
