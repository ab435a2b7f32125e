#include "worker/step/in_flight_buckets.h"

#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Records the calls.
class RecordingExchange : public GradientExchange {
 public:
  absl::Status Start(const JobSpec&, std::span<float>) override { return absl::OkStatus(); }
  void Submit(const Submission& submission) override {
    if (submission.node != Submission::kLastNode) {
      nodes.emplace_back(submission.round, submission.bucket, submission.node);
      return;
    }
    submitted.emplace_back(submission.round, submission.bucket);
    sizes.push_back(std::ssize(submission.gradient));
  }
  absl::Status Await(int64_t round, int bucket) override {
    awaited.emplace_back(round, bucket);
    return absl::OkStatus();
  }
  absl::Status Sum(SumPurpose, std::span<double>) override { return absl::OkStatus(); }
  absl::Status GatherOptimizerState(std::span<const std::span<float>>) override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  absl::Status Finish() override { return absl::OkStatus(); }
  ExchangeCounters counters() const override { return {}; }

  std::vector<std::pair<int64_t, int>> submitted, awaited;
  std::vector<std::tuple<int64_t, int, int>> nodes;
  std::vector<int64_t> sizes;
};

class InFlightBucketsTest : public testing::Test {
 protected:
  // Two tensors, two and a half buckets long.
  InFlightBucketsTest() {
    block_ = BucketMap::Create({.element_count = 1 << 24, .bucket_bytes = 1, .world_size = 1})->bucket(1).size();
    auto layout = Layout::Create({{"a.weight", {block_ / 2}}, {"b.weight", {2 * block_}}});
    EXPECT_TRUE(layout.ok()) << layout.status();
    layout_ = *std::move(layout);
    auto buckets = BucketMap::Create({.element_count = layout_.element_count(), .bucket_bytes = 1, .world_size = 1});
    EXPECT_TRUE(buckets.ok()) << buckets.status();
    buckets_ = *std::move(buckets);
    EXPECT_EQ(buckets_.bucket_count(), 3);
    gradients_.resize(static_cast<size_t>(layout_.element_count()));
    timer_.BeginStep();
  }

  InFlightBuckets Make() {
    return InFlightBuckets({.buckets = &buckets_, .layout = &layout_, .exchange = &exchange_, .rank = 4});
  }

  int64_t block_ = 0;
  Layout layout_;
  BucketMap buckets_;
  RecordingExchange exchange_;
  StepTimer timer_{0};
  std::vector<float> gradients_;
};

TEST_F(InFlightBucketsTest, ABucketLeavesWhenAllOfItIsFinalAndIsAwaitedOnce) {
  InFlightBuckets in_flight = Make();
  const int64_t begin_of_b = layout_.tensors()[1].range.begin;
  const int64_t end = layout_.element_count();
  for (int64_t step = 7; step < 9; ++step) {
    exchange_.submitted.clear();
    exchange_.awaited.clear();
    in_flight.SubmitFrom(begin_of_b, step, gradients_, timer_);
    EXPECT_THAT(exchange_.submitted, ElementsAre(std::pair(step, 0), std::pair(step, 1)));
    in_flight.SubmitFrom(0, step, gradients_, timer_);
    EXPECT_THAT(exchange_.submitted, ElementsAre(std::pair(step, 0), std::pair(step, 1), std::pair(step, 2)));

    std::vector<int> arrived;
    const auto await = [&](ElementRange range) {
      return in_flight.Await(range, timer_, [&](int b) {
        arrived.push_back(b);
        return absl::OkStatus();
      });
    };
    EXPECT_TRUE(await({5, 5}).ok());
    EXPECT_THAT(arrived, IsEmpty());
    EXPECT_TRUE(await({0, begin_of_b}).ok());
    EXPECT_THAT(arrived, ElementsAre(2));
    EXPECT_TRUE(await({0, end}).ok());
    EXPECT_THAT(arrived, ElementsAre(2, 0, 1));
    EXPECT_EQ(exchange_.awaited.size(), 3u);
    EXPECT_TRUE(await({0, end}).ok());
    EXPECT_EQ(exchange_.awaited.size(), 3u) << "nothing is in flight";
  }
}

// The forward of the last node needs the same parameters as those of the others.
TEST_F(InFlightBucketsTest, OnlyTheLastNodeOfAShareIsAwaited) {
  InFlightBuckets in_flight = Make();
  const int64_t end = layout_.element_count();
  for (int64_t step = 0; step < 2; ++step) {
    exchange_.nodes.clear();
    exchange_.submitted.clear();
    exchange_.awaited.clear();
    const auto await = [&] { return in_flight.Await({0, end}, timer_, [](int) { return absl::OkStatus(); }); };
    for (int node = 0; node < 2; ++node) {
      in_flight.SubmitFrom(0, step, gradients_, timer_, {.number = node, .is_last = false});
      EXPECT_TRUE(await().ok());
      EXPECT_THAT(exchange_.awaited, IsEmpty());
    }
    EXPECT_THAT(exchange_.nodes, ElementsAre(std::tuple(step, 0, 0), std::tuple(step, 1, 0), std::tuple(step, 2, 0),
                                             std::tuple(step, 0, 1), std::tuple(step, 1, 1), std::tuple(step, 2, 1)));
    EXPECT_THAT(exchange_.submitted, IsEmpty());
    in_flight.SubmitFrom(0, step, gradients_, timer_, {.number = 2, .is_last = true});
    EXPECT_TRUE(await().ok());
    EXPECT_EQ(exchange_.submitted.size(), 3u);
    EXPECT_EQ(exchange_.awaited.size(), 3u);
  }
}

TEST_F(InFlightBucketsTest, TakesOtherBucketsBetweenTwoSteps) {
  InFlightBuckets in_flight = Make();
  const int64_t end = layout_.element_count();
  const auto step = [&](int64_t number) {
    exchange_.submitted.clear();
    in_flight.SubmitFrom(0, number, gradients_, timer_);
    EXPECT_TRUE(in_flight.Await({0, end}, timer_, [](int) { return absl::OkStatus(); }).ok());
    return exchange_.submitted.size();
  };
  EXPECT_EQ(step(0), 3);
  const BucketMap one = BucketMap::Create({.element_count = end, .bucket_bytes = 1 << 30, .world_size = 1}).value();
  in_flight.UseBuckets(one);
  EXPECT_EQ(step(1), 1);
  in_flight.UseBuckets(buckets_);
  EXPECT_EQ(step(2), 3);
  in_flight.SubmitFrom(layout_.tensors()[1].range.begin, 3, gradients_, timer_);
  EXPECT_DEATH(in_flight.UseBuckets(one), "step 3 was not submitted whole");
  in_flight.SubmitFrom(0, 3, gradients_, timer_);
  EXPECT_DEATH(in_flight.UseBuckets(one), "a bucket of step 3 is in flight");
}

TEST_F(InFlightBucketsTest, NamesRankStepAndTensorOfWhatIsNotFinite) {
  const InFlightBuckets in_flight = Make();
  const int64_t end = layout_.element_count();
  EXPECT_TRUE(in_flight.Check(3, {0, end}, gradients_).ok());
  gradients_[static_cast<size_t>(layout_.tensors()[1].range.begin + 5)] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(in_flight.Check(3, layout_.tensors()[0].range, gradients_).ok());
  const absl::Status status = in_flight.Check(3, {0, end}, gradients_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 4, step 3: the gradient of tensor b.weight is inf: "));
}

}  // namespace
}  // namespace starring
