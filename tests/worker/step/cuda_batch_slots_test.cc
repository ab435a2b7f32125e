// Runs on an emulated GPU whose streams run as late as they may. If memory is reused before its copy has run, the batch
// is then wrong.
#include "worker/step/cuda_batch_slots.h"

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "worker/data/dataset.h"

namespace starring {
namespace {

using ::testing::MatchesRegex;

constexpr int64_t kSamples = 67, kGlobalBatch = 16;  // the last batch of an epoch has 3

class CudaBatchSlotsTest : public ::testing::Test {
 protected:
  CudaBatchSlotsTest() {
    cuda_emulation::Gpu().late = true;
    DatasetOptions data{.name = "synthetic", .synthetic_train_count = kSamples, .synthetic_test_count = 1};
    data.synthetic_height = 5;
    data.synthetic_width = 9;
    data.synthetic_channels = 3;
    dataset_ = std::move(LoadDataset(data)->train);
    device_ = CreateCudaDevice({}).value();
    slots_ =
        CudaBatchSlots::Create(
            {.device = device_.get(), .count = 2, .batch_max = kGlobalBatch, .image_bytes = dataset_.image_bytes()})
            .value();
    labels_ = device_->AllocatePinned(kGlobalBatch * static_cast<int64_t>(sizeof(int32_t))).value();
    pixels_ = device_->AllocatePinned(kGlobalBatch * dataset_.image_bytes()).value();
    values_ = device_->AllocatePinned(sizeof(CudaStepValues)).value();
  }
  ~CudaBatchSlotsTest() override {
    slots_.reset();
    labels_.reset();
    pixels_.reset();
    values_.reset();
    device_.reset();
    cuda_emulation::Gpu() = {};
  }

  Loader::Options LoaderOptions() const {
    return {.dataset = &dataset_,
            .sampler = {.sample_count = kSamples, .global_batch = kGlobalBatch, .seed = 3},
            .normalization = {.mean = {0, 0, 0}, .deviation = {1, 1, 1}},
            .augment = Loader::Augment::kCropFlip,
            .format = Loader::Format::kStored,
            .end_step = 1000};
  }

  // Makes the calls of a training step, in its order.
  void Feed(int64_t step, Loader* loader) {
    ASSERT_TRUE(slots_->AwaitCopy().ok());
    const auto batch = loader->Next();
    ASSERT_TRUE(batch.ok()) << batch.status();
    ASSERT_TRUE(slots_->Fill(slots_->of(step), **batch, {.learning_rate = static_cast<float>(step)}).ok());
  }

  // A step that copies its input back to the host.
  void Launch(CudaBatchSlots::Slot& slot) {
    const int64_t count = std::ssize(slot.plan().samples);
    CudaStream& stream = *device_->stream();
    ASSERT_TRUE(slot.BeginStep(&stream).ok());
    ASSERT_TRUE(stream.CopyToHost(slot.values(), values_->data(), values_->size_bytes()).ok());
    ASSERT_TRUE(stream.CopyToHost(slot.device_result(), slot.result(), sizeof(CudaStepResult)).ok());
    ASSERT_TRUE(stream.CopyToHost(slot.targets(), labels_->data(), count * 4).ok());
    ASSERT_TRUE(stream.CopyToHost(slot.stored(), pixels_->data(), count * dataset_.image_bytes()).ok());
    ASSERT_TRUE(slot.EndStep(&stream).ok());
  }

  void ExpectThatArrived(const Batch& expected) {
    const auto* const values = static_cast<const CudaStepValues*>(values_->data());
    EXPECT_EQ(values->step, expected.plan.step);
    EXPECT_EQ(values->first_sample, expected.plan.first_sample);
    EXPECT_EQ(values->loss_scale, 1.0f / static_cast<float>(expected.plan.global_count));
    EXPECT_EQ(values->optimizer.learning_rate, static_cast<float>(expected.plan.step));
    const CudaStepResult& result = *slots_->of(expected.plan.step).result();
    EXPECT_EQ(result.loss_sum, 0);
    EXPECT_EQ(result.correct, 0);
    EXPECT_EQ(result.non_finite_element, -1);
    const auto* const labels = static_cast<const int32_t*>(labels_->data());
    EXPECT_TRUE(std::equal(expected.labels.begin(), expected.labels.end(), labels));
    const auto* const pixels = static_cast<const uint8_t*>(pixels_->data());
    EXPECT_TRUE(std::equal(expected.stored.begin(), expected.stored.end(), pixels));
  }

  Dataset dataset_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaBatchSlots> slots_;
  std::unique_ptr<PinnedBuffer> values_, labels_, pixels_;
};

class CudaBatchSlotsFeedTest : public CudaBatchSlotsTest, public ::testing::WithParamInterface<std::tuple<int, int>> {};

TEST_P(CudaBatchSlotsFeedTest, EveryBatchArrivesWholeOneAheadOfTheStep) {
  Loader::Options options = LoaderOptions();
  options.prefetch_depth = 0;
  const auto reference = Loader::Create(options).value();
  options.memory = slots_.get();
  std::tie(options.threads, options.prefetch_depth) = GetParam();
  const auto loader = Loader::Create(options).value();
  Feed(0, loader.get());
  for (int64_t step = 0; step < 12; ++step) {
    SCOPED_TRACE(step);
    CudaBatchSlots::Slot& slot = slots_->of(step);
    ASSERT_TRUE(slot.is_full());
    Launch(slot);
    Feed(step + 1, loader.get());
    ASSERT_TRUE(slot.Finish().ok());
    ExpectThatArrived(**reference->Next());
  }
}

INSTANTIATE_TEST_SUITE_P(ThreadsAndDepth, CudaBatchSlotsFeedTest,
                         ::testing::Values(std::tuple(1, 0), std::tuple(1, 1), std::tuple(1, 3), std::tuple(3, 4)));

TEST_F(CudaBatchSlotsTest, ABatchOfARankWithoutSamplesBringsItsValues) {
  Loader::Options options = LoaderOptions();
  options.sampler.rank = 0;
  options.sampler.world_size = 4;
  options.first_step = 4;  // of 3 samples
  options.memory = slots_.get();
  const auto loader = Loader::Create(options).value();
  options.memory = nullptr;
  const auto reference = Loader::Create(options).value();
  Feed(4, loader.get());
  CudaBatchSlots::Slot& slot = slots_->of(4);
  ASSERT_TRUE(slot.plan().samples.empty());
  Launch(slot);
  ASSERT_TRUE(slot.Finish().ok());
  ExpectThatArrived(**reference->Next());
}

TEST_F(CudaBatchSlotsTest, TooLittlePinnedMemoryIsRefusedWithNumbers) {
  cuda_emulation::Gpu().pinned_bytes_max = 2000;
  Loader::Options options = LoaderOptions();
  options.memory = slots_.get();
  const auto loader = Loader::Create(options);
  EXPECT_EQ(loader.status().code(), absl::StatusCode::kResourceExhausted);
  // A header of two 64-byte lines at least, a label of 4 bytes and an image of 135 for each of 16 samples.
  EXPECT_THAT(std::string(loader.status().message()),
              MatchesRegex("one of 4 batches of the loader.*--global_batch.*--prefetch_depth.*: "
                           "no pinned host memory for a buffer of 2[0-9][0-9][0-9] bytes"));
}

}  // namespace
}  // namespace starring
