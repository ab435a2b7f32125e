#include "server/shard/shared_arrays.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kElements = 8;

// A shard that owns elements 2 to 5 of one bucket, of a job of two workers; the learning rate is 1, without momentum.
class SharedArraysTest : public testing::Test {
 protected:
  SharedArraysTest() {
    arrays_ = std::make_unique<SharedArrays>(SharedArrays::Options{
        .sums = &sums_, .slices = slices_, .element_count = kElements, .world_size = 2, .leaf_owners = {0, 1}});
  }

  static std::unique_ptr<SharedMemory> MakeMemory() {
    auto memory = SharedMemory::Create(kElements);
    CHECK_OK(memory);
    return *std::move(memory);
  }

  // Sends a SHARE of `rank` and opens the memory that the answer names.
  std::unique_ptr<SharedMemory> Share(int rank, const SharedMemory& gradients) {
    v1::ExchangeMessage request;
    *request.mutable_gradient_memory() = gradients.where();
    const auto where = arrays_->Share(rank, request);
    CHECK_OK(where);
    auto parameters = SharedMemory::Open(*where, kElements, SharedMemory::Access::kRead);
    CHECK_OK(parameters);
    return *std::move(parameters);
  }

  absl::Status Note(int rank, bool shared) {
    v1::ExchangeMessage request;
    request.set_shared(shared);
    return arrays_->NoteRequest(rank, request);
  }

  void SetParameters() {
    const std::vector<float> initial = {10, 20, 30};
    const std::span<const std::byte> piece = std::as_bytes(std::span(initial));
    CHECK_OK(sums_.SetParameters(0, {&piece, 1}));
  }

  // Both workers contribute 1 to every element, so 2 is subtracted.
  void Step(int64_t step) {
    arrays_->UpdateInPlaceIfAllShare(0);
    for (const int worker : {0, 1}) {
      const auto ones = std::make_shared<std::vector<float>>(3, 1.0f);
      CHECK_OK(sums_.Contribute({.from = {worker, 0},
                                 .step = step,
                                 .bucket = 0,
                                 .pieces = {std::as_bytes(std::span<const float>(*ones))},
                                 .keeper = ones},
                                {}));
    }
    arrays_->PublishIfShared(0);
  }

  static std::vector<float> Copy(const SharedMemory& memory) {
    return {memory.values().begin(), memory.values().end()};
  }

  const std::vector<ElementRange> slices_ = {{.begin = 2, .end = 5}};
  ContributionSum sums_ =
      ContributionSum::Create({.slices = {slices_}, .element_count = kElements, .schedule = {.base = 1}},
                              {.world_size = 2})
          .value();
  std::unique_ptr<SharedArrays> arrays_;
};

TEST_F(SharedArraysTest, AllWorkersReadOneVectorOfParameters) {
  const auto gradients = MakeMemory();
  const auto first = Share(0, *gradients);
  EXPECT_EQ(arrays_->GradientsOf(0)->where().nonce(), gradients->where().nonce());
  const auto second = Share(1, *MakeMemory());
  EXPECT_EQ(first->where().nonce(), second->where().nonce());
  arrays_->Publish(0);
  EXPECT_THAT(Copy(*first), Each(0)) << "there are no parameters yet";
  SetParameters();
  arrays_->Publish(0);
  EXPECT_THAT(Copy(*second), ElementsAre(0, 0, 10, 20, 30, 0, 0, 0));
  EXPECT_EQ(arrays_->published_step(0), -1);
}

TEST_F(SharedArraysTest, WhatIsThereWhenTheFirstSharesIsPublishedAtOnce) {
  SetParameters();
  EXPECT_THAT(Copy(*Share(1, *MakeMemory())), ElementsAre(0, 0, 10, 20, 30, 0, 0, 0));
}

TEST_F(SharedArraysTest, NothingIsWrittenForNoReader) {
  const auto parameters = Share(0, *MakeMemory());
  SetParameters();
  Step(0);
  EXPECT_THAT(Copy(*parameters), Each(0));
  ASSERT_TRUE(Note(0, true).ok());
  EXPECT_TRUE(arrays_->Shares(0));
  Step(1);
  EXPECT_EQ(arrays_->published_step(0), 1);
  EXPECT_NE(Copy(*parameters)[2], 0);
  // A worker that goes on by socket no longer reads there.
  ASSERT_TRUE(Note(0, false).ok());
  Step(2);
  EXPECT_EQ(arrays_->published_step(0), 1);
}

TEST_F(SharedArraysTest, TheShardUpdatesInPlaceOnceAllShare) {
  const auto parameters = Share(0, *MakeMemory());
  Share(1, *MakeMemory());
  SetParameters();
  ASSERT_TRUE(Note(0, true).ok());
  Step(0);
  const float* const copied_from = sums_.Parameters(0)->parameters().data();
  ASSERT_TRUE(Note(1, true).ok());
  Step(1);
  const std::span<const float> sealed = sums_.Parameters(0)->parameters();
  EXPECT_NE(sealed.data(), copied_from);
  Step(2);
  EXPECT_EQ(sums_.Parameters(0)->parameters().data(), sealed.data()) << "each step overwrites the one before";
  EXPECT_EQ(Copy(*parameters), (std::vector<float>{0, 0, sealed[0], sealed[1], sealed[2], 0, 0, 0}));
  EXPECT_EQ(arrays_->published_step(0), 2);
}

TEST_F(SharedArraysTest, MemoryThatIsNotHereOrNotTheOthersIsUnavailable) {
  v1::ExchangeMessage request;
  *request.mutable_gradient_memory() = MakeMemory()->where();  // gone
  EXPECT_EQ(arrays_->Share(0, request).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Note(0, true).code(), absl::StatusCode::kFailedPrecondition) << "it shares none";
  const auto gradients = MakeMemory();
  Share(0, *gradients);
  const auto others = MakeMemory();
  *request.mutable_gradient_memory() = gradients->where();
  *request.mutable_parameter_memory() = others->where();
  EXPECT_EQ(arrays_->Share(1, request).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Note(1, true).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace starring
