#include "common/reduce/arrays/reduce_ring.h"

#include <string>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/python/summing_ranks.h"

namespace starring {
namespace {

using testing::HasSubstr;

struct Set {
  int worker_count = 1;
  SummingRanks::Sharing sharing = SummingRanks::Sharing::kMessages;
};

class ReduceRingTest : public testing::TestWithParam<Set> {
 protected:
  static int worker_count() { return GetParam().worker_count; }
  static SummingRanks Ranks(uint64_t seed) {
    return SummingRanks(
        {.topology = Topology::kRing, .worker_count = worker_count(), .sharing = GetParam().sharing, .seed = seed});
  }
};

// Fewer elements than ranks, one block and several, with a short last one, and more blocks than are in flight.
TEST_P(ReduceRingTest, EverySumHasTheBitsOfTheChain) {
  SummingRanks ranks = Ranks(1);
  const int64_t block = ReductionBlockElements(worker_count());
  std::vector<ReductionHead> heads;
  std::vector<std::vector<std::byte>> expected;
  for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{1'000}, block, 2 * block + 17, 9 * block}) {
      const ReductionHead head = {.bucket = static_cast<int>(heads.size()), .count = count, .type = type, .divisor = 5};
      std::vector<std::vector<std::byte>> contributions;
      for (int rank = 0; rank < worker_count(); ++rank) {
        contributions.push_back(WildElements(head, rank, heads.size()));
        ranks.Begin(rank, head, contributions.back());
      }
      heads.push_back(head);
      expected.push_back(ReferenceSum(Topology::kRing, head, contributions));
    }
  }
  ASSERT_EQ(ranks.Finish(), absl::OkStatus());
  for (int rank = 0; rank < worker_count(); ++rank) {
    EXPECT_EQ(ranks.completed_count(rank), std::ssize(heads));
    for (size_t i = 0; i < heads.size(); ++i) {
      EXPECT_TRUE(ranks.elements(rank, i) == expected[i])
          << "rank " << rank << ", " << heads[i].count << " elements of " << ElementTypeName(heads[i].type);
    }
  }
}

TEST_P(ReduceRingTest, ADifferenceNamesBothRanksAndBothValues) {
  if (worker_count() == 1) return;  // a rank agrees with itself
  SummingRanks ranks = Ranks(2);
  for (int rank = 0; rank < worker_count(); ++rank) {
    const ReductionHead head = {.bucket = rank == 0 ? 2 : 1, .step = 4, .count = 10'000};
    ranks.Begin(rank, head, WildElements(head, rank, 1));
  }
  const absl::Status status = ranks.Finish();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  for (const char* const part : {"rank 0", "step 4, bucket 2", "step 4, bucket 1"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  for (int rank = 0; rank < worker_count(); ++rank) EXPECT_EQ(ranks.completed_count(rank), 0);
}

// Elements of reductions on which ranks disagree are never added, however late the difference is found.
TEST_P(ReduceRingTest, NothingIsAddedWhereRanksDisagree) {
  if (worker_count() == 1) return;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SummingRanks ranks = Ranks(seed);
    std::vector<std::vector<std::byte>> contributions;
    for (int rank = 0; rank < worker_count(); ++rank) {
      const ReductionHead head = {.bucket = rank, .count = 100};
      contributions.push_back(WildElements(head, rank, seed));
      ranks.Begin(rank, head, contributions.back());
    }
    EXPECT_TRUE(absl::IsInvalidArgument(ranks.Finish()));
    for (int rank = 0; rank < worker_count(); ++rank) EXPECT_TRUE(ranks.elements(rank, 0) == contributions[rank]);
  }
}

std::string NameOf(const testing::TestParamInfo<Set>& set) {
  return std::to_string(set.param.worker_count) + "Ranks" +
         (set.param.sharing == SummingRanks::Sharing::kMemory ? "Memory" : "Messages");
}

constexpr auto kMemory = SummingRanks::Sharing::kMemory;
INSTANTIATE_TEST_SUITE_P(Sets, ReduceRingTest,
                         testing::Values(Set{1}, Set{2}, Set{3}, Set{5}, Set{8}, Set{2, kMemory}, Set{3, kMemory},
                                         Set{5, kMemory}),
                         NameOf);

}  // namespace
}  // namespace starring
