#include "common/reduce/arrays/reduction.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr ReductionHead kHead = {.bucket = 3, .step = 12, .layout = 0xabc, .count = 100, .divisor = 2.0f};

// `kHead` with one field changed.
template <typename Change>
ReductionHead With(Change change) {
  ReductionHead head = kHead;
  change(head);
  return head;
}

TEST(ReductionTest, HeadsOutOfRangeAreRefusedByValue) {
  EXPECT_TRUE(CheckHead(kHead).ok());
  EXPECT_TRUE(CheckHead(With([](auto& head) { head.count = 0; })).ok());
  const struct {
    ReductionHead head;
    const char* value;
  } kWrong[] = {
      {With([](auto& head) { head.step = -1; }), "-1"},
      {With([](auto& head) { head.step = kStepCountMax + 1; }), "1000000000001"},
      {With([](auto& head) { head.bucket = -2; }), "-2"},
      {With([](auto& head) { head.bucket = kBucketCountMax; }), "65536"},
      {With([](auto& head) { head.count = -5; }), "-5"},
      {With([](auto& head) { head.count = kElementCountMax + 1; }), "68719476737"},
      {With([](auto& head) { head.type = static_cast<ElementType>(3); }), "type 3"},
      {With([](auto& head) { head.type = static_cast<ElementType>(-1); }), "type -1"},
      {With([](auto& head) { head.divisor = 0.0f; }), "divisor 0"},
      {With([](auto& head) { head.divisor = -4.0f; }), "-4"},
      {With([](auto& head) { head.divisor = NAN; }), "nan"},
      {With([](auto& head) { head.divisor = INFINITY; }), "inf"},
  };
  for (const auto& [head, value] : kWrong) {
    const absl::Status status = CheckHead(head);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(value));
  }
}

TEST(ReductionTest, ADifferenceNamesBothRanksAndBothValues) {
  EXPECT_TRUE(CheckSameHead({.rank = 0, .head = kHead}, {.rank = 1, .head = kHead}).ok());
  const struct {
    ReductionHead head;
    const char* theirs;
    const char* ours;
  } kDifferent[] = {
      {With([](auto& head) { head.step = 13; }), "step 13, bucket 3", "step 12, bucket 3"},
      {With([](auto& head) { head.bucket = 4; }), "step 12, bucket 4", "step 12, bucket 3"},
      {With([](auto& head) { head.count = 101; }), "101 elements", "100 elements"},
      {With([](auto& head) { head.type = ElementType::kFloat16; }), "float16", "float32"},
      {With([](auto& head) { head.layout = 0xdef; }), "0000000000000def", "0000000000000abc"},
      {With([](auto& head) { head.divisor = 4.0f; }), "divided by 4", "divided by 2"},
  };
  for (const auto& [head, theirs, ours] : kDifferent) {
    const absl::Status status = CheckSameHead({.rank = 5, .head = kHead}, {.rank = 7, .head = head});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 5"), HasSubstr("rank 7"), HasSubstr(theirs), HasSubstr(ours)));
  }
}

// The hash, modulo the number of tag sets, tells the messages of reductions apart.
TEST(ReductionTest, HashesTellNeighboursApart) {
  std::set<uint64_t> numbers;
  for (int step = 0; step < 10; ++step) {
    for (int bucket = 0; bucket < 10; ++bucket) {
      const ReductionHead head = With([&](auto& changed) {
        changed.step = step;
        changed.bucket = bucket;
      });
      EXPECT_EQ(HashOf(head), HashOf(head));
      numbers.insert(HashOf(head) % (1 << 18));
    }
  }
  EXPECT_EQ(numbers.size(), 100u);
  EXPECT_NE(HashOf(kHead), HashOf(With([](auto& head) { head.count = 101; })));
  EXPECT_NE(HashOf(kHead), HashOf(With([](auto& head) { head.layout = 1; })));
  EXPECT_NE(HashOf(kHead), HashOf(With([](auto& head) { head.divisor = 1; })));
}

}  // namespace
}  // namespace starring
