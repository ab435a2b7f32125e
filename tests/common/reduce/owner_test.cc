// One owner alone; star_test.cc has the sums.
#include "common/reduce/owner.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "common/base/memory.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

constexpr int kSlots = 3;
constexpr int64_t kElements = 32;
constexpr int64_t kSliceBytes = kElements * sizeof(float);  // the sum is too short for two owners

class CopyingSink final : public StarSink {
 public:
  std::span<const std::byte> Contribution(const StarSum& /*sum*/, int /*node*/, ElementRange /*range*/) override {
    return std::as_bytes(own_.span()).first(kSliceBytes);
  }
  std::span<std::byte> Result(const StarSum& /*sum*/, ElementRange /*range*/) override {
    return std::as_writable_bytes(result_.span()).first(kSliceBytes);
  }
  Finished FinishAll(const StarSum& /*sum*/, const Output& output, std::span<std::byte* const> contributions) override {
    std::copy_n(contributions[1], output.record.size(), output.record.data());
    return Finished::kNow;
  }

 private:
  AlignedFloats own_{kElements}, result_{kElements};
};

class OwnerTest : public testing::Test {
 protected:
  Owner MakeOwner(bool is_shared) {
    Owner::Options options = {.sink = &sink_,
                              .rank_count = 2,
                              .contributors = OneOfEachRank(2),
                              .window_bytes = 1 << 16,
                              .memory = {},
                              .is_shared = is_shared};
    const int64_t bytes = kSlots * Owner::SlotBytes(options, {.piece_bytes_max = kSliceBytes});
    options.memory = StarMemory(std::as_writable_bytes(memory_.span()).first(bytes), kSlots);
    return Owner(std::move(options));
  }
  // The memory for the contribution to the next piece.
  std::byte* Begin(Owner& owner, int expected_slot) {
    EXPECT_EQ(owner.Begin(pieces_, 0), expected_slot);
    return owner.NextReceive(expected_slot)->place.data();
  }
  static void End(Owner& owner, int slot) {
    EXPECT_EQ(owner.OnArrival(slot, 0), Owner::State::kSealed);
    owner.Free(slot);
  }

  CopyingSink sink_;
  AlignedFloats memory_{1024};
  const StarSum sum_ = {.elements = {0, kElements}, .owners = OwnerMap::Ranges(2)};
  const StarPieces pieces_{&sum_, 1 << 16};
};

// Slots are used in turn, because contributors count them, too.
TEST_F(OwnerTest, TakesAContributionWhereTheLastOneWas) {
  Owner owner = MakeOwner(false);
  const std::byte* const first = Begin(owner, 0);
  const std::byte* const second = Begin(owner, 1);
  EXPECT_NE(first, second);
  End(owner, 0);
  EXPECT_EQ(Begin(owner, 2), first);
  End(owner, 1);
  EXPECT_EQ(Begin(owner, 0), second);
}

TEST_F(OwnerTest, SharedMemoryIsTheSlots) {
  Owner owner = MakeOwner(true);
  const std::byte* const first = Begin(owner, 0);
  End(owner, 0);
  const std::byte* const second = Begin(owner, 1);
  End(owner, 1);
  Begin(owner, 2);
  End(owner, 2);
  EXPECT_NE(first, second);
  EXPECT_EQ(Begin(owner, 0), first);
}

}  // namespace
}  // namespace starring
