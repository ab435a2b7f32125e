#include "worker/python/batch_lender.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/dataset.h"
#include "worker/data/normalization.h"

namespace starring {
namespace {

using State = BatchLender::State;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::shared_ptr<const TrainAndTest> MakeSets(int64_t count) {
  DatasetOptions options{.name = "synthetic", .synthetic_train_count = count, .synthetic_test_count = 1};
  options.synthetic_height = 6;
  options.synthetic_width = 7;
  options.synthetic_channels = 3;
  auto sets = LoadDataset(options);
  EXPECT_TRUE(sets.ok()) << sets.status();
  return std::make_shared<const TrainAndTest>(*std::move(sets));
}

// The same samples with three numbers each.
std::shared_ptr<const TrainAndTest> MakeNumbers(int64_t count) {
  TrainAndTest sets = *MakeSets(count);
  sets.train.target = TargetType::kNumbers;
  sets.train.target_values = 3;
  sets.train.labels.clear();
  sets.train.targets.resize(static_cast<size_t>(3 * count));
  std::iota(sets.train.targets.begin(), sets.train.targets.end(), 0.5f);
  return std::make_shared<const TrainAndTest>(std::move(sets));
}

BatchLender::Options MakeOptions(std::shared_ptr<const TrainAndTest> sets) {
  return {.sets = sets,
          .loader = {.dataset = &sets->train,
                     .sampler = {.sample_count = sets->train.count, .global_batch = 8, .seed = 3},
                     .normalization = NormalizationFromSums(PixelSums(sets->train, 0, sets->train.count)),
                     .augment = Loader::Augment::kCropFlip,
                     .end_step = 1 << 20}};
}

std::unique_ptr<BatchLender> Make(const BatchLender::Options& options) {
  auto lender = BatchLender::Create(options);
  EXPECT_TRUE(lender.ok()) << lender.status();
  return *std::move(lender);
}

// The loader's own batches.
class Expected {
 public:
  explicit Expected(Loader::Options options) {
    options.prefetch_depth = 0;
    auto loader = Loader::Create(options);
    EXPECT_TRUE(loader.ok()) << loader.status();
    loader_ = *std::move(loader);
  }
  void Check(const LentBatch& lent) {
    const auto batch = loader_->Next();
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(lent.step, (*batch)->plan.step);
    EXPECT_EQ(lent.epoch, (*batch)->plan.epoch);
    EXPECT_EQ(lent.global_count, (*batch)->plan.global_count);
    EXPECT_EQ(lent.count, std::ssize((*batch)->plan.samples));
    EXPECT_THAT(lent.images, Pointwise(Eq(), (*batch)->images));
    EXPECT_THAT(lent.labels, Pointwise(Eq(), (*batch)->labels));
    EXPECT_THAT(lent.targets, Pointwise(Eq(), (*batch)->targets));
  }

 private:
  std::unique_ptr<Loader> loader_;
};

class BatchLenderDepthTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Depths, BatchLenderDepthTest, ::testing::Values(0, 1, 3));

TEST_P(BatchLenderDepthTest, LendsTheLoadersBatches) {
  BatchLender::Options options = MakeOptions(MakeSets(43));  // the last batch of an epoch has 3 samples
  options.loader.prefetch_depth = GetParam();
  options.loader.threads = 2;
  Expected expected(options.loader);
  const auto lender = Make(options);
  for (int step = 0; step < 20; ++step) {
    const auto lent = lender->Next();
    ASSERT_TRUE(lent.ok()) << lent.status();
    expected.Check(*lent);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(lent->images.data()) % kCacheLineBytes, 0u);
    EXPECT_EQ(*lender->GiveBack(lent->memory), State::kInUse);
  }
  EXPECT_EQ(lender->Close(), State::kUnused);
}

TEST_P(BatchLenderDepthTest, ABatchStaysUntilItIsGivenBack) {
  BatchLender::Options options = MakeOptions(MakeSets(43));
  options.loader.prefetch_depth = GetParam();
  const auto lender = Make(options);
  std::vector<LentBatch> lent;
  for (int step = 0; step < 30; ++step) lent.push_back(*lender->Next());
  // In another order than they came.
  for (int step = 0; step < 30; step += 2) EXPECT_TRUE(lender->GiveBack(lent[step].memory).ok());
  for (int step = 30; step < 60; ++step) lent.push_back(*lender->Next());
  // Those that were not given back.
  lent.erase(
      std::remove_if(lent.begin(), lent.end(), [](const LentBatch& one) { return one.step < 30 && one.step % 2 == 0; }),
      lent.end());
  for (const LentBatch& batch : lent) {
    Loader::Options at_step = options.loader;
    at_step.first_step = batch.step;
    Expected(at_step).Check(batch);
  }
  EXPECT_EQ(lender->Close(), State::kInUse);
  int unused = 0;
  for (const LentBatch& batch : lent) unused += *lender->GiveBack(batch.memory) == State::kUnused;
  EXPECT_EQ(unused, 1);
}

TEST(BatchLenderTest, NumbersAreLentWhereTheLoaderWroteThem) {
  BatchLender::Options options = MakeOptions(MakeNumbers(43));
  Expected expected(options.loader);
  const auto lender = Make(options);
  for (int step = 0; step < 20; ++step) {
    const LentBatch lent = *lender->Next();
    expected.Check(lent);
    EXPECT_EQ(std::ssize(lent.targets), 3 * lent.count);
    EXPECT_EQ(lent.labels.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::byte*>(lent.targets.data()), lent.memory);
    EXPECT_EQ(*lender->GiveBack(lent.memory), State::kInUse);
  }
  EXPECT_EQ(lender->Close(), State::kUnused);
}

TEST(BatchLenderTest, FewBlocksTakeTurns) {
  const auto lender = Make(MakeOptions(MakeSets(64)));
  std::set<std::byte*> blocks;
  LentBatch held = *lender->Next();
  for (int step = 0; step < 200; ++step) {
    // As a loop in Python does: the next batch is asked for before the last one is let go.
    const LentBatch next = *lender->Next();
    blocks.insert(next.memory);
    EXPECT_TRUE(lender->GiveBack(held.memory).ok());
    held = next;
  }
  EXPECT_LE(blocks.size(), 3u + 1 + 2);  // prefetch_depth + 1, and two more
  EXPECT_TRUE(lender->GiveBack(held.memory).ok());
  EXPECT_EQ(lender->Close(), State::kUnused);
}

TEST(BatchLenderTest, WhatIsNotLentCannotBeGivenBack) {
  const auto lender = Make(MakeOptions(MakeSets(64)));
  const LentBatch batch = *lender->Next();
  std::byte other{};
  EXPECT_EQ(lender->GiveBack(&other).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(lender->GiveBack(batch.memory).ok());
  const auto again = lender->GiveBack(batch.memory);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(again.status().message(), HasSubstr("give each batch back once"));
  lender->Close();
}

TEST(BatchLenderTest, TheEndIsABatchWithoutMemory) {
  BatchLender::Options options = MakeOptions(MakeSets(64));
  options.loader.first_step = 5;
  options.loader.end_step = 7;
  const auto lender = Make(options);
  for (int step = 5; step < 7; ++step) EXPECT_TRUE(lender->GiveBack(lender->Next()->memory).ok());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(lender->Next()->memory, nullptr);
  EXPECT_EQ(lender->Close(), State::kUnused);
}

TEST(BatchLenderTest, ALimitHoldsThoseThatNeverLetGo) {
  BatchLender::Options options = MakeOptions(MakeSets(2));
  options.loader.sampler.global_batch = 1;
  options.loader.prefetch_depth = 0;
  const auto lender = Make(options);
  std::vector<std::byte*> held;
  absl::StatusOr<LentBatch> lent = lender->Next();
  for (; lent.ok(); lent = lender->Next()) held.push_back(lent->memory);
  EXPECT_EQ(std::ssize(held), kBatchesLentMax);
  EXPECT_EQ(lent.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(lent.status().message(), HasSubstr("65536 batches are lent, at most 65536 can be: copy"));
  EXPECT_TRUE(lender->GiveBack(held.back()).ok());
  held.pop_back();
  lent = lender->Next();
  EXPECT_TRUE(lent.ok()) << lent.status();
  lender->Close();
  held.push_back(lent->memory);
  for (std::byte* const memory : held) EXPECT_TRUE(lender->GiveBack(memory).ok());
}

// Tensors die on any thread.
TEST(BatchLenderTest, OtherThreadsGiveBack) {
  const auto lender = Make(MakeOptions(MakeSets(64)));
  std::vector<std::thread> threads;
  for (int i = 0; i < 100; ++i) {
    threads.emplace_back([&lender, memory = lender->Next()->memory] { EXPECT_TRUE(lender->GiveBack(memory).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lender->Close(), State::kUnused);
}

TEST(BatchLenderTest, AForkGetsASentenceAndLeavesTheRestAlone) {
  const auto lender = Make(MakeOptions(MakeSets(64)));
  const LentBatch batch = *lender->Next();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto next = lender->Next();
    const bool is_refused = absl::IsFailedPrecondition(next.status()) &&
                            next.status().message().find("open a loader in each process") != absl::string_view::npos;
    const bool has_no_effect = *lender->GiveBack(batch.memory) == State::kInUse && lender->Close() == State::kInUse;
    _exit(is_refused && has_no_effect ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const absl::StatusOr<LentBatch> next = lender->Next();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(lender->Close(), State::kInUse);
  EXPECT_EQ(*lender->GiveBack(next->memory), State::kInUse);
  EXPECT_EQ(*lender->GiveBack(batch.memory), State::kUnused);
}

TEST(BatchLenderTest, RefusesWhatTheLoaderRefuses) {
  BatchLender::Options options = MakeOptions(MakeSets(64));
  options.loader.threads = 0;
  EXPECT_EQ(BatchLender::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace starring
