// Runs on an emulated GPU: the network reads the same input, whichever way the batch reached the GPU.
#include "worker/step/cuda_input.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/step/cuda_batch_slots.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kTrain = 67, kTest = 20, kBatch = 16, kEvaluation = 7;
constexpr uint64_t kSeed = 3;

class CudaInputTest : public ::testing::Test {
 protected:
  CudaInputTest() {
    cuda_emulation::Gpu().late = true;
    DatasetOptions data{.name = "synthetic", .synthetic_train_count = kTrain, .synthetic_test_count = kTest};
    data.synthetic_height = 5;
    data.synthetic_width = 9;
    data.synthetic_channels = 3;
    data_ = LoadDataset(data).value();
    device_ = CreateCudaDevice({}).value();
  }
  ~CudaInputTest() override {
    device_.reset();
    cuda_emulation::Gpu() = {};
  }

  absl::StatusOr<std::unique_ptr<CudaInput>> Create(bool data_on_gpu) {
    return CudaInput::Create({.device = device_.get(),
                              .data = &data_,
                              .data_on_gpu = data_on_gpu,
                              .augment = Loader::Augment::kCropFlip,
                              .seed = kSeed,
                              .batch_max = kBatch,
                              .evaluation_batch_max = kEvaluation});
  }

  struct Read {
    std::vector<float> images;
    std::vector<int32_t> targets;  // labels, or the bits of float32
    bool operator==(const Read&) const = default;
  };
  Read ReadBack(const NetworkInput& input) {
    Read read;
    read.images.resize(static_cast<size_t>(input.batch * data_.train.image_values()));
    read.targets.resize(static_cast<size_t>(input.batch * data_.train.batch_target_bytes() / 4));
    device_->CopyToHost(input.images.data(), read.images.data(), std::ssize(read.images) * 4);
    device_->CopyToHost(input.targets.labels(), read.targets.data(), std::ssize(read.targets) * 4);
    EXPECT_TRUE(device_->Synchronize().ok());
    return read;
  }

  // The network's input in nine steps (two epochs), then in an evaluation of the test set.
  std::vector<Read> ReadAll(bool data_on_gpu) {
    std::vector<Read> all;
    const auto input = Create(data_on_gpu).value();
    const Normalization normalization{
        .mean = {0.1f, 0.2f, 0.3f}, .deviation = {0.5f, 0.6f, 0.7f}, .type = data_.train.type};
    EXPECT_TRUE(input->Begin(normalization).ok());
    const int64_t image_bytes = input->format() == Loader::Format::kStored ? data_.train.image_bytes() : 0;
    const auto slots = CudaBatchSlots::Create({.device = device_.get(),
                                               .count = 4,
                                               .batch_max = kBatch,
                                               .target_bytes = data_.train.batch_target_bytes(),
                                               .image_bytes = image_bytes})
                           .value();
    Loader::Options options{.dataset = &data_.train,
                            .sampler = {.sample_count = kTrain, .global_batch = kBatch, .seed = kSeed},
                            .normalization = normalization,
                            .augment = Loader::Augment::kCropFlip,
                            .format = input->format(),
                            .end_step = 9,
                            .memory = slots.get()};
    const auto training = Loader::Create(options).value();
    for (int64_t step = 0; step < options.end_step; ++step) {
      CudaBatchSlots::Slot& slot = slots->of(step);
      EXPECT_TRUE(slots->Fill(slot, **training->Next(), {}).ok());
      EXPECT_TRUE(slot.BeginStep(device_->stream()).ok());
      device_->BindStepValues(slot.values());
      all.push_back(ReadBack(input->Training(slot)));
      device_->BindStepValues(nullptr);
    }
    options.dataset = &data_.test;
    options.sampler = {.sample_count = kTest, .global_batch = kEvaluation, .order = Sampler::Order::kSequential};
    options.augment = Loader::Augment::kNone;
    options.memory = nullptr;
    options.end_step = Sampler(options.sampler).steps_per_epoch();
    const auto evaluation = Loader::Create(options).value();
    for (int64_t step = 0; step < options.end_step; ++step) {
      all.push_back(ReadBack(input->Evaluation(**evaluation->Next())));
    }
    return all;
  }

  TrainAndTest data_;
  std::unique_ptr<CudaDevice> device_;
};

// The pixels become numbers of the same values.
void MakeNumbers(Dataset& dataset) {
  const std::vector<float> numbers(dataset.images.begin(), dataset.images.end());
  dataset.type = FieldType::kNumbers;
  dataset.images.resize(numbers.size() * sizeof(float));
  std::memcpy(dataset.images.data(), numbers.data(), dataset.images.size());
}

// The labels become two numbers each.
void MakeTargets(Dataset& dataset) {
  dataset.target = TargetType::kNumbers;
  dataset.target_values = 2;
  for (int64_t i = 0; i < dataset.count; ++i) {
    dataset.targets.insert(dataset.targets.end(), {static_cast<float>(i), 0.5f * dataset.labels[i]});
  }
  dataset.labels.clear();
}

TEST_F(CudaInputTest, TheDataSetsPlaceChangesNoBit) {
  for (const int round : {0, 1, 2}) {
    for (Dataset* const set : {&data_.train, &data_.test}) {
      if (round == 1) MakeNumbers(*set);
      if (round == 2) MakeTargets(*set);
    }
    const std::vector<Read> host = ReadAll(false), gpu = ReadAll(true);
    ASSERT_EQ(host.size(), gpu.size());
    for (size_t i = 0; i < host.size(); ++i) EXPECT_TRUE(host[i] == gpu[i]) << "batch " << i;
    EXPECT_FALSE(host[0] == host[5]);  // the second epoch's
  }
}

TEST_F(CudaInputTest, NoMemoryIsRefusedWithNumbers) {
  cuda_emulation::Gpu().memory_bytes = cuda_emulation::DeviceBytes() + 15'000;
  const auto input = Create(true);
  EXPECT_EQ(input.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(input.status().message()), AllOf(HasSubstr("training images"), HasSubstr("9045 bytes")));
}

}  // namespace
}  // namespace starring
