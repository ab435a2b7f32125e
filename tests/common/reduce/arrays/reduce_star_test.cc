#include "common/reduce/arrays/reduce_star.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/python/summing_ranks.h"

namespace starring {
namespace {

using testing::HasSubstr;

// Nothing; one element; shorter than a slice; not a whole number of lines; with few owners more pieces than
// are on their way.
const int64_t kCounts[] = {0, 1, 100, 5'003, 300'001};

struct Set {
  int worker_count = 1;
  int server_count = 0;
  SummingRanks::Sharing sharing = SummingRanks::Sharing::kMessages;
};

class ReduceStarTest : public testing::TestWithParam<Set> {
 protected:
  SummingRanks Ranks(uint64_t seed) const {
    return SummingRanks({.worker_count = GetParam().worker_count,
                         .server_count = GetParam().server_count,
                         .sharing = GetParam().sharing,
                         .seed = seed});
  }
};

ReductionHead Head(int64_t step, int bucket, int64_t count, ElementType type) {
  return {.bucket = bucket, .step = step, .layout = 7, .count = count, .type = type, .divisor = 3.0f};
}

// All arrays of all types are under way together.
TEST_P(ReduceStarTest, EverySumHasTheBitsOfTheTree) {
  SummingRanks ranks = Ranks(1);
  std::vector<ReductionHead> heads;
  std::vector<std::vector<std::byte>> expected;
  for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}) {
    for (const int64_t count : kCounts) {
      const ReductionHead head = Head(0, static_cast<int>(heads.size()), count, type);
      std::vector<std::vector<std::byte>> contributions;
      for (int rank = 0; rank < ranks.worker_count(); ++rank) {
        contributions.push_back(WildElements(head, rank, heads.size()));
        ranks.Begin(rank, head, contributions.back());
      }
      heads.push_back(head);
      expected.push_back(ReferenceSum(Topology::kStar, head, contributions));
    }
  }
  ASSERT_EQ(ranks.Finish(), absl::OkStatus());
  for (int rank = 0; rank < ranks.worker_count(); ++rank) {
    EXPECT_EQ(ranks.completed_count(rank), std::ssize(heads));
    for (size_t i = 0; i < heads.size(); ++i) {
      EXPECT_TRUE(ranks.elements(rank, i) == expected[i])
          << "rank " << rank << ", " << heads[i].count << " elements of " << ElementTypeName(heads[i].type);
    }
  }
  if (GetParam().server_count > 0) {
    EXPECT_EQ(ranks.End(), absl::OkStatus());
  }
}

TEST_P(ReduceStarTest, BitsDependOnNoCut) {
  constexpr int64_t kCount = 100'000;
  const ReductionHead whole = Head(0, 0, kCount, ElementType::kFloat32);
  std::vector<std::vector<std::byte>> sums;
  for (const int64_t cut : {kCount, int64_t{33'333}, int64_t{9'000}}) {
    SummingRanks ranks = Ranks(cut);
    int64_t arrays = 0;
    for (int64_t begin = 0; begin < kCount; begin += cut) {
      const int64_t count = std::min(cut, kCount - begin);
      for (int rank = 0; rank < ranks.worker_count(); ++rank) {
        const std::vector<std::byte> all = WildElements(whole, rank, 5);
        ranks.Begin(rank, Head(0, static_cast<int>(arrays), count, ElementType::kFloat32),
                    {all.begin() + begin * 4, all.begin() + (begin + count) * 4});
      }
      ++arrays;
    }
    ASSERT_EQ(ranks.Finish(), absl::OkStatus());
    std::vector<std::byte> sum;
    const int last = ranks.worker_count() - 1;
    for (int64_t i = 0; i < arrays; ++i) {
      sum.insert(sum.end(), ranks.elements(last, i).begin(), ranks.elements(last, i).end());
    }
    sums.push_back(sum);
  }
  EXPECT_TRUE(sums[0] == sums[1]);
  EXPECT_TRUE(sums[0] == sums[2]);
}

// One rank may be many reductions ahead of another; the other one's owner has no place for them.
TEST_P(ReduceStarTest, ARankMayBeAhead) {
  SummingRanks ranks = Ranks(3);
  constexpr int64_t kCount = 60'000;
  constexpr int kSteps = 8;
  for (int rank = 0; rank < ranks.worker_count(); ++rank) {
    for (int step = 0; step < kSteps; ++step) {
      const ReductionHead head = Head(step, 0, kCount, ElementType::kBfloat16);
      ranks.Begin(rank, head, WildElements(head, rank, step));
    }
  }
  ASSERT_EQ(ranks.Finish(), absl::OkStatus());
  for (int step = 0; step < kSteps; ++step) {
    const ReductionHead head = Head(step, 0, kCount, ElementType::kBfloat16);
    std::vector<std::vector<std::byte>> contributions;
    for (int rank = 0; rank < ranks.worker_count(); ++rank) contributions.push_back(WildElements(head, rank, step));
    EXPECT_TRUE(ranks.elements(0, step) == ReferenceSum(Topology::kStar, head, contributions)) << step;
  }
}

TEST_P(ReduceStarTest, ADifferenceNamesBothRanksAndBothValues) {
  if (GetParam().worker_count == 1) return;  // a rank agrees with itself
  SummingRanks ranks = Ranks(4);
  for (int rank = 0; rank < ranks.worker_count(); ++rank) {
    const int64_t count = rank == 1 ? 90'001 : 90'000;
    const ReductionHead head = Head(12, 3, count, ElementType::kFloat32);
    ranks.Begin(rank, head, WildElements(head, rank, 1));
  }
  const absl::Status status = ranks.Finish();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  for (const char* const part : {"rank 1", "90001 elements", "90000 elements", "step 12, bucket 3"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  // No rank may use a sum of arrays that do not belong together.
  for (int rank = 0; rank < ranks.worker_count(); ++rank) EXPECT_EQ(ranks.completed_count(rank), 0);
}

TEST(ReduceStarMessageTest, MessagesAreShorterWithManyRanks) {
  EXPECT_EQ(ReduceStarMessageBytes(1), 256 << 10);
  EXPECT_EQ(ReduceStarMessageBytes(16), 256 << 10);
  EXPECT_EQ(ReduceStarMessageBytes(64), 64 << 10);
  EXPECT_EQ(ReduceStarMessageBytes(1024), 16 << 10);
}

// Two ranks begin the same two sums in different orders. The pieces of the long one are in other slots then.
TEST_P(ReduceStarTest, SumsInDifferentOrdersAreNeverAdded) {
  if (GetParam().worker_count == 1) return;
  const std::vector<ReductionHead> heads = {Head(1, 0, 100'000, ElementType::kFloat32),
                                            Head(1, 1, 700'000, ElementType::kFloat32)};
  SummingRanks ranks = Ranks(6);
  for (int rank = 0; rank < ranks.worker_count(); ++rank) {
    for (const int i : {0, 1}) {
      const ReductionHead& head = heads[rank == 1 ? 1 - i : i];
      ranks.Begin(rank, head, WildElements(head, rank, 1));
    }
  }
  const absl::Status status = ranks.Finish();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  for (int rank = 0; rank < ranks.worker_count(); ++rank) {
    for (const int i : {0, 1}) {
      const ReductionHead& head = heads[rank == 1 ? 1 - i : i];
      EXPECT_TRUE(ranks.elements(rank, i) == WildElements(head, rank, 1)) << "rank " << rank << ", sum " << i;
    }
  }
}

// Sums of no elements end without the other ranks.
TEST(SumServerTest, ARankThatIsFarAheadIsRefused) {
  SummingRanks ranks({.worker_count = 2, .server_count = 1});
  for (int64_t step = 0; step < kReductionsMax + 2; ++step) {
    ranks.Begin(0, Head(step, 0, 0, ElementType::kFloat32), {});
  }
  const absl::Status status = ranks.End();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 has begun 1002 sums"));
}

std::string NameOf(const testing::TestParamInfo<Set>& set) {
  return std::to_string(set.param.worker_count) + "Ranks" + std::to_string(set.param.server_count) + "Servers" +
         (set.param.sharing == SummingRanks::Sharing::kMemory ? "Memory" : "Messages");
}

constexpr auto kMemory = SummingRanks::Sharing::kMemory;
INSTANTIATE_TEST_SUITE_P(Sets, ReduceStarTest,
                         testing::Values(Set{1}, Set{2}, Set{3}, Set{5}, Set{8}, Set{1, 1}, Set{2, 1}, Set{2, 2},
                                         Set{3, 2}, Set{5, 1}, Set{8, 2}, Set{2, 0, kMemory}, Set{3, 0, kMemory},
                                         Set{5, 0, kMemory}, Set{3, 2, kMemory}),
                         NameOf);

}  // namespace
}  // namespace starring
