#include "server/shard/contribution_sum.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/allocation_count.h"
#include "tests/common/arithmetic/wild_numbers.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kCount = 48;  // elements; bucket 0 is [32, 48), bucket 1 [0, 32)

// Plain SGD with rate 1: parameters are minus the sum of all gradients so far.
OwnedSlices::Options SgdOptions() {
  return {.slices = {{{32, 48}}, {{0, 32}}}, .element_count = kCount, .schedule = {.base = 1}};
}

absl::Status SetParameters(ContributionSum& sums, int bucket, const std::vector<float>& values) {
  const BytePiece piece = std::as_bytes(std::span(values));
  return sums.SetParameters(bucket, {&piece, 1});
}

ContributionSum MakeStarted(int world_size, OwnedSlices::Options options = SgdOptions()) {
  ContributionSum sums = ContributionSum::Create(std::move(options), {.world_size = world_size}).value();
  for (int b = 0; b < sums.owned().bucket_count(); ++b) {
    EXPECT_TRUE(SetParameters(sums, b, std::vector<float>(sums.owned().slice_element_count(b))).ok());
  }
  return sums;
}

// A contribution that arrived on lane 7.
Contribution Constant(int worker, int64_t step, int bucket, float value, int64_t count) {
  auto values = std::make_shared<std::vector<float>>(count, value);
  return {.from = {worker, 7},
          .step = step,
          .bucket = bucket,
          .pieces = {std::as_bytes(std::span(*values))},
          .keeper = values};
}

ContributeResult MustContribute(ContributionSum& sums, Contribution contribution, ContributionSum::Time now = {}) {
  absl::StatusOr<ContributeResult> result = sums.Contribute(std::move(contribution), now);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

std::string Refusal(absl::StatusCode code, const absl::Status& status) {
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

TEST(ContributionSumTest, TheLastContributionSeals) {
  ContributionSum sums = MakeStarted(3);
  EXPECT_EQ(sums.Parameters(0)->step(), -1);
  ContributeResult result = MustContribute(sums, Constant(2, 0, 0, 4, 16));
  EXPECT_EQ(result.fate, ContributionFate::kPending);
  EXPECT_EQ(result.sealed, nullptr);
  EXPECT_EQ(MustContribute(sums, Constant(0, 0, 0, 1, 16)).fate, ContributionFate::kPending);
  result = MustContribute(sums, Constant(1, 0, 0, 2, 16));
  EXPECT_EQ(result.fate, ContributionFate::kSealed);
  ASSERT_NE(result.sealed, nullptr);
  EXPECT_EQ(result.sealed->step(), 0);
  EXPECT_TRUE(SameBits(result.sealed->parameters(), std::vector<float>(16, -7)));
  EXPECT_EQ(sums.Parameters(0), result.sealed);
}

// A server that counted messages instead of workers would add a repeated one twice, and seal without the last worker.
TEST(ContributionSumTest, ARepeatedContributionChangesNothing) {
  ContributionSum sums = MakeStarted(2);
  MustContribute(sums, Constant(0, 0, 0, 1, 16));
  const ContributeResult again = MustContribute(sums, Constant(0, 0, 0, 1, 16));
  EXPECT_EQ(again.fate, ContributionFate::kDuplicate);
  EXPECT_EQ(again.sealed, nullptr);
  const ContributeResult sealed = MustContribute(sums, Constant(1, 0, 0, 10, 16));
  EXPECT_EQ(sealed.fate, ContributionFate::kSealed);
  EXPECT_EQ(sealed.sealed->parameters()[0], -11);

  const ContributeResult late = MustContribute(sums, Constant(0, 0, 0, 1, 16));
  EXPECT_EQ(late.fate, ContributionFate::kDuplicate);
  EXPECT_EQ(late.sealed, sealed.sealed);
}

// Two parts of a long bucket, and a short one that is complete meanwhile. Each is sealed in its turn.
TEST(ContributionSumTest, SumsLongSlicesInParts) {
  constexpr int64_t kLong = ContributionSum::kPartElements + 16;
  ContributionSum sums =
      MakeStarted(2, {.slices = {{{32, 32 + kLong}}, {{0, 32}}}, .element_count = 32 + kLong, .schedule = {.base = 1}});
  sums.SumInParts();
  MustContribute(sums, Constant(0, 0, 0, 1, kLong));
  const ContributeResult last = MustContribute(sums, Constant(1, 0, 0, 10, kLong));
  EXPECT_EQ(last.fate, ContributionFate::kComplete);
  EXPECT_EQ(last.sealed, nullptr);
  EXPECT_TRUE(sums.is_summing());
  EXPECT_EQ(sums.SumPart(), std::nullopt);
  EXPECT_EQ(sums.Parameters(0)->step(), -1);
  // Its sender has connected again. The answer goes there.
  Contribution repeat = Constant(0, 0, 0, 1, kLong);
  repeat.from.lane = 3;
  EXPECT_EQ(MustContribute(sums, std::move(repeat)).fate, ContributionFate::kDuplicate);
  MustContribute(sums, Constant(0, 0, 1, 2, 32));
  EXPECT_EQ(MustContribute(sums, Constant(1, 0, 1, 3, 32)).fate, ContributionFate::kComplete);
  const std::optional<SealedUpdate> first = sums.SumPart();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->bucket, 0);
  EXPECT_THAT(first->answer_to, ElementsAre(LaneId{0, 3}, LaneId{1, 7}));
  EXPECT_TRUE(SameBits(first->sealed->parameters(), std::vector<float>(kLong, -11)));
  const std::optional<SealedUpdate> second = sums.SumPart();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->bucket, 1);
  EXPECT_EQ(second->sealed->parameters()[0], -5);
  EXPECT_FALSE(sums.is_summing());
  // The next step is a step as any other.
  MustContribute(sums, Constant(0, 1, 1, 2, 32));
  EXPECT_EQ(MustContribute(sums, Constant(1, 1, 1, 3, 32)).fate, ContributionFate::kSealed);
}

// With eight leaves and three workers, the first two workers have three leaves: a node of two and one of one.
TEST(ContributionSumTest, TakesEveryNodeOfAShareOnceAndAnswersTheLast) {
  ContributionSum sums =
      ContributionSum::Create(SgdOptions(), {.order = SumOrder::kTree, .world_size = 3}, DealLeavesEvenly(8, 3))
          .value();
  for (int b = 0; b < 2; ++b) {
    ASSERT_TRUE(SetParameters(sums, b, std::vector<float>(sums.owned().slice_element_count(b))).ok());
  }
  const auto of_node = [](int worker, int node, float value) {
    Contribution contribution = Constant(worker, 0, 0, value, 16);
    contribution.node = node;
    return contribution;
  };
  for (int again = 0; again < 2; ++again) {
    for (const int worker : {0, 1}) {
      const ContributeResult first = MustContribute(sums, of_node(worker, 0, 1));
      EXPECT_EQ(first.fate, again == 0 ? ContributionFate::kPending : ContributionFate::kDuplicate);
      EXPECT_TRUE(first.accepted);
      EXPECT_TRUE(first.answer_to.empty());
    }
  }
  // A worker that has sent only a part of its share is missing, just as one that has sent nothing.
  const ContributeResult single = MustContribute(sums, of_node(2, 0, 1));
  EXPECT_FALSE(single.accepted);
  EXPECT_EQ(sums.wait(0).DescribeMissing(), "ranks 0, 1 have");
  EXPECT_FALSE(MustContribute(sums, of_node(0, 1, 10)).accepted);
  EXPECT_EQ(sums.wait(0).DescribeMissing(), "rank 1 has");
  const ContributeResult last = MustContribute(sums, of_node(1, 1, 100));
  EXPECT_EQ(last.fate, ContributionFate::kSealed);
  EXPECT_EQ(sums.counted_leaves(0), 8);  // repeats do not count
  EXPECT_EQ(sums.counted_leaves(1), 0);
  EXPECT_THAT(last.answer_to, ElementsAre(LaneId{0, 7}, LaneId{1, 7}, LaneId{2, 7}));
  EXPECT_EQ(last.sealed->parameters()[0], -(1 + 1 + 1 + 10 + 100));
  // Repeats of a step that is sealed: only the last node's gets the parameters.
  const ContributeResult late = MustContribute(sums, of_node(0, 0, 1));
  EXPECT_TRUE(late.accepted);
  EXPECT_EQ(late.sealed, nullptr);
  EXPECT_EQ(MustContribute(sums, of_node(0, 1, 10)).sealed, last.sealed);
  for (const int node : {-1, 2}) {
    EXPECT_THAT(Refusal(absl::StatusCode::kInvalidArgument, sums.Contribute(of_node(1, node, 1), {}).status()),
                HasSubstr(absl::StrCat("worker 1 sends node ", node, " of its share")));
  }
}

TEST(ContributionSumTest, LeavesThatCannotBeDealtAreRefused) {
  const auto refusal = [](SumOrder order, int leaf_count) {
    return Refusal(
        absl::StatusCode::kInvalidArgument,
        ContributionSum::Create(SgdOptions(), {.order = order, .world_size = 3}, std::vector<int>(leaf_count))
            .status());
  };
  EXPECT_THAT(refusal(SumOrder::kTree, 2), HasSubstr("micro_batches is 2, it must be 3, the number of workers"));
  EXPECT_THAT(refusal(SumOrder::kTree, kMicroBatchesMax + 1), HasSubstr("micro_batches is 1025"));
  EXPECT_THAT(refusal(SumOrder::kChain, 8), HasSubstr("which need sum_order TREE"));
}

TEST(ContributionSumTest, SaysWhomToAnswerAndSinceWhenTheyWait) {
  using std::chrono::seconds;
  ContributionSum sums = MakeStarted(2);
  const ContributionSum::Time start{};
  const ContributeResult first = MustContribute(sums, Constant(1, 0, 0, 1, 16), start + seconds(5));
  EXPECT_TRUE(first.answer_to.empty());
  EXPECT_EQ(first.first_arrival, start + seconds(5));
  EXPECT_EQ(sums.wait(0).since(), start + seconds(5));
  // The worker's lane broke: the answer goes to where the repeat came from.
  Contribution repeat = Constant(1, 0, 0, 1, 16);
  repeat.from.lane = 3;
  EXPECT_TRUE(MustContribute(sums, repeat, start + seconds(6)).answer_to.empty());
  const ContributeResult last = MustContribute(sums, Constant(0, 0, 0, 1, 16), start + seconds(7));
  EXPECT_THAT(last.answer_to, ElementsAre(LaneId{0, 7}, LaneId{1, 3}));
  EXPECT_EQ(last.first_arrival, start + seconds(5));
  EXPECT_TRUE(sums.wait(0).empty());
  EXPECT_THAT(MustContribute(sums, repeat, start + seconds(8)).answer_to, ElementsAre(LaneId{1, 3}));
}

TEST(ContributionSumTest, BucketsAdvanceByThemselves) {
  ContributionSum sums = MakeStarted(1);
  for (int step = 0; step < 3; ++step) MustContribute(sums, Constant(0, step, 1, 1, 32));
  EXPECT_EQ(sums.Parameters(1)->step(), 2);
  EXPECT_EQ(sums.Parameters(0)->step(), -1);
  EXPECT_EQ(sums.steps_complete(), 0);
  MustContribute(sums, Constant(0, 0, 0, 1, 16));
  EXPECT_EQ(sums.steps_complete(), 1);
}

TEST(ContributionSumTest, OtherStepsAreRefusedByName) {
  ContributionSum sums = MakeStarted(1);
  for (int step = 0; step < 2; ++step) MustContribute(sums, Constant(0, step, 0, 1, 16));
  const auto refusal = [&](int64_t step) {
    return Refusal(absl::StatusCode::kFailedPrecondition, sums.Contribute(Constant(0, step, 0, 1, 16), {}).status());
  };
  EXPECT_EQ(refusal(0), "worker 0 contributes to step 0 of bucket 0, step 2 is expected");
  EXPECT_EQ(refusal(3), "worker 0 contributes to step 3 of bucket 0, step 2 is expected");
  EXPECT_THAT(refusal(-1), HasSubstr("step -1"));
  EXPECT_EQ(sums.Parameters(0)->parameters()[0], -2) << "an error changes nothing";
}

TEST(ContributionSumTest, AResumedShardHasNoStepBeforeItsFirst) {
  OwnedSlices::Options options = SgdOptions();
  options.first_step = 7;
  ContributionSum sums = MakeStarted(1, std::move(options));
  EXPECT_EQ(sums.Parameters(0)->step(), 6);
  EXPECT_EQ(sums.steps_complete(), 7);
  Refusal(absl::StatusCode::kFailedPrecondition, sums.Contribute(Constant(0, 6, 0, 1, 16), {}).status());
  EXPECT_EQ(MustContribute(sums, Constant(0, 7, 0, 1, 16)).sealed->step(), 7);
}

TEST(ContributionSumTest, ContributionsBeforeTheParametersAreRefused) {
  ContributionSum sums = ContributionSum::Create(SgdOptions(), {.world_size = 1}).value();
  EXPECT_EQ(sums.Parameters(0), nullptr);
  EXPECT_THAT(Refusal(absl::StatusCode::kFailedPrecondition, sums.Contribute(Constant(0, 0, 0, 1, 16), {}).status()),
              HasSubstr("bucket 0 at step 0, which has no parameters yet"));
}

TEST(ContributionSumTest, AWrongNumberOfBytesIsRefusedWithBothValues) {
  ContributionSum sums = ContributionSum::Create(SgdOptions(), {.world_size = 2}).value();
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Refusal(invalid, SetParameters(sums, 0, std::vector<float>(17))),
              HasSubstr("given 68 bytes of parameters, its slice has 64"));
  ASSERT_TRUE(SetParameters(sums, 0, std::vector<float>(16)).ok());
  EXPECT_DEATH((void)SetParameters(sums, 0, std::vector<float>(16)), "has its parameters already");
  EXPECT_THAT(Refusal(invalid, sums.Contribute(Constant(1, 0, 0, 1, 15), {}).status()),
              HasSubstr("worker 1 sends 60 bytes for bucket 0 at step 0, the slice has 64"));
  EXPECT_FALSE(sums.wait(0).Has(1)) << "an error changes nothing";
}

TEST(ContributionSumTest, StateIsSetBeforeTheParameters) {
  OwnedSlices::Options options = SgdOptions();
  options.optimizer = {.momentum = 0.9};
  ContributionSum sums = ContributionSum::Create(std::move(options), {.world_size = 1}).value();
  const std::vector<float> state = WildNumbers(16, 1);
  const CutMessage message(state, {5}, 3);
  ASSERT_TRUE(sums.SetState(0, 0, message.pieces()).ok());
  EXPECT_TRUE(SameBits(sums.owned().state(0, 0), state));
  EXPECT_THAT(Refusal(absl::StatusCode::kInvalidArgument, sums.SetState(1, 0, message.pieces())),
              HasSubstr("given 64 bytes of optimizer state, its slice has 128"));
  ASSERT_TRUE(SetParameters(sums, 0, std::vector<float>(16)).ok());
  EXPECT_DEATH((void)sums.SetState(0, 0, message.pieces()), "has its parameters already");
}

TEST(ContributionSumTest, KeepersAreDroppedOnceTheSumIsMade) {
  ContributionSum sums = MakeStarted(2);
  Contribution first = Constant(0, 0, 0, 1, 16);
  const std::weak_ptr<const void> keeper = first.keeper;
  MustContribute(sums, std::move(first));
  EXPECT_FALSE(keeper.expired()) << "the sum has not read the bytes yet";
  Contribution duplicate = Constant(0, 0, 0, 1, 16);
  const std::weak_ptr<const void> of_duplicate = duplicate.keeper;
  MustContribute(sums, std::move(duplicate));
  EXPECT_TRUE(of_duplicate.expired());
  MustContribute(sums, Constant(1, 0, 0, 1, 16));
  EXPECT_TRUE(keeper.expired());
}

// A server that reused the buffer of an answer too early would send a slow worker the next step's numbers.
TEST(ContributionSumTest, ASliceThatIsHeldNeverChanges) {
  ContributionSum sums = MakeStarted(1);
  std::vector<std::shared_ptr<const SealedSlice>> held = {sums.Parameters(0)};
  for (int step = 0; step < 8; ++step) {
    held.push_back(MustContribute(sums, Constant(0, step, 0, 1, 16)).sealed);
    for (size_t i = 0; i < held.size(); ++i) {
      EXPECT_EQ(held[i]->step(), static_cast<int64_t>(i) - 1);
      EXPECT_TRUE(SameBits(held[i]->parameters(), std::vector<float>(16, static_cast<float>(-static_cast<int>(i)))))
          << i << " at " << step;
    }
  }
}

TEST(ContributionSumTest, BuffersOfReleasedSlicesAreUsedAgain) {
  ContributionSum sums = MakeStarted(1);
  std::set<const float*> buffers;
  std::shared_ptr<const SealedSlice> previous;  // a reply that lasts as long as one more step
  for (int step = 0; step < 50; ++step) {
    previous = MustContribute(sums, Constant(0, step, 0, 1, 16)).sealed;
    buffers.insert(previous->parameters().data());
  }
  EXPECT_LE(buffers.size(), 3u);  // the newest, the reply's, and one to write to
}

TEST(ContributionSumTest, ASteadyStepAllocatesTheListOfLanesOnly) {
  OwnedSlices::Options options = SgdOptions();
  options.optimizer = {.momentum = 0.9};
  ContributionSum sums = MakeStarted(2, std::move(options));
  for (int step = 0; step < 10; ++step) {
    Contribution first = Constant(0, step, 0, 1, 16), second = Constant(1, step, 0, 1, 16);
    const int64_t before = AllocationCount();
    ASSERT_TRUE(sums.Contribute(std::move(first), {}).ok());
    EXPECT_EQ(AllocationCount(), before);
    ASSERT_TRUE(sums.Contribute(std::move(second), {}).ok());
    if (step < 3) continue;  // the pool of buffers fills
    EXPECT_EQ(AllocationCount(), before + 1) << "at step " << step;
  }
}

TEST(ContributionSumTest, UpdatesInPlaceWithTheSameBits) {
  ContributionSum sums = MakeStarted(1);
  MustContribute(sums, Constant(0, 0, 0, 0.5f, 16));
  const auto memory = std::make_shared<std::vector<float>>(16, -0.5f);
  sums.UpdateInPlace(0, *memory, memory);
  EXPECT_EQ(sums.Parameters(0)->step(), 0);
  EXPECT_EQ(sums.Parameters(0)->parameters().data(), memory->data());
  // A repeat of the step before is answered from there too.
  EXPECT_EQ(MustContribute(sums, Constant(0, 0, 0, 9, 16)).sealed, sums.Parameters(0));
  for (int64_t step = 1; step < 4; ++step) {
    const ContributeResult result = MustContribute(sums, Constant(0, step, 0, 1, 16));
    EXPECT_EQ(result.sealed->step(), step);
    EXPECT_EQ(*memory, std::vector<float>(16, -0.5f - static_cast<float>(step)));
  }
}

TEST(ContributionSumTest, AnEmptySliceTakesPartWithNoBytes) {
  OwnedSlices::Options options = SgdOptions();
  options.slices = {{}, {{0, 16}}};
  ContributionSum sums = MakeStarted(2, std::move(options));
  for (int step = 0; step < 2; ++step) {
    MustContribute(sums, {.from = {0, 0}, .step = step, .bucket = 0});
    const ContributeResult result = MustContribute(sums, {.from = {1, 0}, .step = step, .bucket = 0});
    EXPECT_EQ(result.sealed->step(), step);
    EXPECT_TRUE(result.sealed->parameters().empty());
  }
  EXPECT_EQ(sums.steps_complete(), 0) << "bucket 1 decides";
  for (int worker = 0; worker < 2; ++worker) MustContribute(sums, Constant(worker, 0, 1, 1, 16));
  EXPECT_EQ(sums.steps_complete(), 1);
}

TEST(ContributionSumTest, CountsTheBucketsThatWaitForARank) {
  ContributionSum sums = MakeStarted(2);
  EXPECT_EQ(sums.BucketsMissing(0), 0);
  MustContribute(sums, Constant(1, 0, 0, 1, 16));
  MustContribute(sums, Constant(1, 0, 1, 1, 32));
  EXPECT_EQ(sums.BucketsMissing(0), 2);
  EXPECT_EQ(sums.BucketsMissing(1), 0);
  MustContribute(sums, Constant(0, 0, 1, 1, 32));
  EXPECT_EQ(sums.BucketsMissing(0), 1);
}

TEST(ContributionSumTest, AWorldSizeOutOfBoundsIsRefused) {
  for (const int world_size : {0, kWorldSizeMax + 1}) {
    EXPECT_THAT(Refusal(absl::StatusCode::kInvalidArgument,
                        ContributionSum::Create(SgdOptions(), {.world_size = world_size}).status()),
                HasSubstr(absl::StrCat("world_size is ", world_size)));
  }
}

// Slow readers may hold any number of slices. The number of buffers that are kept for later steps is bounded.
TEST(ContributionSumTest, KeepsNoMoreBuffersThanAllowed) {
  ContributionSum sums = MakeStarted(1);
  std::vector<std::shared_ptr<const SealedSlice>> held;
  std::vector<std::weak_ptr<const SealedSlice>> seen;
  for (int step = 0; step < 4 * kSliceBuffersMax; ++step) {
    held.push_back(MustContribute(sums, Constant(0, step, 0, 1, 16)).sealed);
    seen.push_back(held.back());
  }
  held.clear();
  EXPECT_EQ(std::count_if(seen.begin(), seen.end(), [](const auto& slice) { return !slice.expired(); }),
            kSliceBuffersMax);
}

// One array is read and written then, instead of two.
TEST(ContributionSumTest, TheNewestParametersAreWrittenOverOnceNoAnswerHoldsThem) {
  ContributionSum sums = MakeStarted(1);
  const float* const memory = sums.Parameters(0)->parameters().data();
  MustContribute(sums, Constant(0, 0, 0, 1, 16));
  EXPECT_EQ(sums.Parameters(0)->parameters().data(), memory);
  const auto held = sums.Parameters(0);
  MustContribute(sums, Constant(0, 1, 0, 1, 16));
  EXPECT_NE(sums.Parameters(0)->parameters().data(), memory);
}

// For ThreadSanitizer. A gRPC thread that drops an answer's bytes takes no lock, and no thread joins it. So only
// FreeBuffer's look at the reference count orders the thread's last read before the next write to that memory.
TEST(ContributionSumTest, MemoryIsWrittenAgainOnlyAfterTheLastRead) {
  ContributionSum sums = MakeStarted(1);
  std::shared_ptr<const SealedSlice> initial = sums.Parameters(0);
  const float* const memory = initial->parameters().data();
  std::thread reader([held = std::move(initial)]() mutable {
    float sum = 0;
    for (const float value : held->parameters()) sum += value;
    EXPECT_EQ(sum, 0) << "written to while it was read";
    held.reset();
  });
  bool written_again = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(50);
  for (int64_t step = 0; !written_again && std::chrono::steady_clock::now() < deadline; ++step) {
    const auto newest = sums.Parameters(0);  // held, or it would be written over
    MustContribute(sums, Constant(0, step, 0, 1, 16));
    written_again = sums.Parameters(0)->parameters().data() == memory;
  }
  EXPECT_TRUE(written_again);
  reader.join();
}

}  // namespace
}  // namespace starring
