#include "worker/step/cuda_input.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/data/crop_flip.h"

namespace starring {
namespace {

constexpr int64_t kUploadBytes = 64 << 20;          // copied at a time
constexpr int64_t kNumberBytes = sizeof(uint32_t);  // of a sample

// The label or targets of one sample in the data set.
int64_t ResidentTargetBytes(const Dataset& data) {
  return data.target == TargetType::kClass ? static_cast<int64_t>(sizeof(uint16_t)) : data.batch_target_bytes();
}

// The same in an evaluated batch, or the sample's number, whichever the loader brings.
int64_t HeadBytes(const CudaInput::Options& options) {
  return options.data_on_gpu ? kNumberBytes : options.data->train.batch_target_bytes();
}

// The larger of a training batch and one of an evaluation.
int64_t SamplesMax(const CudaInput::Options& options) {
  return std::max(options.batch_max, options.evaluation_batch_max);
}

}  // namespace

// Images and labels or targets are as in the data set on the host. Labels and pixels are widened when a batch is
// gathered, so the whole set takes a quarter of the memory that normalised images would.
struct CudaInput::Resident {
  std::unique_ptr<DeviceBuffer> images, targets;
};

CudaInput::CudaInput(const Options& options)
    : options_(options), device_(*options.device), shape_(options.data->train) {}
CudaInput::~CudaInput() = default;

absl::StatusOr<std::unique_ptr<CudaInput>> CudaInput::Create(const Options& options) {
  auto input = absl::WrapUnique(new CudaInput(options));
  RETURN_IF_ERROR(input->Allocate());
  return input;
}

int64_t CudaInput::BatchBytes(const Options& options) {
  // This must count what Allocate allocates, byte for byte: a training that does not fit is refused before anything is
  // allocated, by this sum. tests/worker/step/gpu_memory_test.cc compares both.
  const Dataset& shape = options.data->train;
  const int64_t images = SamplesMax(options) * shape.image_values() * BytesOf(options.element);
  const int64_t constants = 2 * shape.channels * kFloatBytes;
  const int64_t evaluation_head = options.evaluation_batch_max * HeadBytes(options);
  return images + constants + evaluation_head +
         (options.data_on_gpu ? SamplesMax(options) * shape.batch_target_bytes()
                              : options.evaluation_batch_max * shape.image_bytes());
}

int64_t CudaInput::DataBytes(const Options& options) {
  if (!options.data_on_gpu) return 0;
  const TrainAndTest& data = *options.data;
  return (data.train.count + data.test.count) * (data.train.image_bytes() + ResidentTargetBytes(data.train));
}

absl::Status CudaInput::Allocate() {
  // One buffer for training and evaluation, which never run at the same time.
  ASSIGN_OR_RETURN(images_, device_.Allocate(SamplesMax(options_) * shape_.image_values() * BytesOf(options_.element)),
                   "a batch of images");
  ASSIGN_OR_RETURN(evaluation_head_, device_.Allocate(options_.evaluation_batch_max * HeadBytes(options_)));
  ASSIGN_OR_RETURN(offset_, device_.Allocate(shape_.channels * kFloatBytes));
  ASSIGN_OR_RETURN(scale_, device_.Allocate(shape_.channels * kFloatBytes));
  if (options_.data_on_gpu) {
    // Targets are gathered like images. Without the data set on the GPU they come with the batch, and stay where they
    // are: in the slot, or in evaluation_head_.
    ASSIGN_OR_RETURN(targets_, device_.Allocate(SamplesMax(options_) * shape_.batch_target_bytes()));
    ASSIGN_OR_RETURN(train_, Upload(options_.data->train), "the training images");
    ASSIGN_OR_RETURN(test_, Upload(options_.data->test), "the test images");
  } else {
    ASSIGN_OR_RETURN(evaluation_values_, device_.Allocate(options_.evaluation_batch_max * shape_.image_bytes()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CudaInput::Resident>> CudaInput::Upload(const Dataset& dataset) {
  auto resident = std::make_unique<Resident>();
  ASSIGN_OR_RETURN(resident->images, device_.Allocate(dataset.count * dataset.image_bytes()));
  const void* const targets =
      dataset.target == TargetType::kClass ? static_cast<const void*>(dataset.labels.data()) : dataset.targets.data();
  ASSIGN_OR_RETURN(resident->targets, device_.Allocate(dataset.count * ResidentTargetBytes(dataset)));
  // The copy from pageable memory is slower than one from pinned memory, but it happens once.
  int64_t copied = 0;
  absl::Status status;
  const int64_t block = std::max<int64_t>(1, kUploadBytes / dataset.image_bytes());
  dataset.ForEachBlock(0, dataset.count, block, [&](std::span<const uint8_t> values, int64_t) {
    device_.CopyToDevice(values.data(), static_cast<std::byte*>(resident->images->data()) + copied, std::ssize(values));
    copied += std::ssize(values);
    status.Update(device_.Synchronize());  // a mapped set's block is in memory that the next one uses
  });
  RETURN_IF_ERROR(status);
  if (dataset.mapped != nullptr) RETURN_IF_ERROR(dataset.mapped->Check());
  device_.CopyToDevice(targets, resident->targets->data(), resident->targets->size_bytes());
  RETURN_IF_ERROR(device_.Synchronize());
  return resident;
}

Loader::Format CudaInput::format() const {
  // The format is never kNormalized: pixels are a quarter of the bytes on the bus, and the GPU normalises all values
  // with the same bits (worker/data/normalization.h).
  return train_ == nullptr ? Loader::Format::kStored : Loader::Format::kSamples;
}

absl::Status CudaInput::Begin(const Normalization& normalization) {
  // This is not part of Create, because the normalisation is a sum over all ranks, which needs an exchange that has
  // started.
  const NormalizerConstants constants = NormalizerConstantsOf(normalization);
  CHECK_EQ(std::ssize(constants.offset), shape_.channels);
  device_.CopyToDevice(constants.offset.data(), offset_->data(), shape_.channels * kFloatBytes);
  device_.CopyToDevice(constants.scale.data(), scale_->data(), shape_.channels * kFloatBytes);
  return device_.Synchronize();  // `constants` ends here
}

NetworkInput CudaInput::Training(const CudaBatchSlots::Slot& slot) {
  // In a capture the kernel's arguments are these addresses and this size, so a graph serves one slot and one batch
  // size. Nothing else of the batch is read here: values, samples, labels and the epoch are read when the kernel runs.
  const int64_t batch = std::ssize(slot.plan().samples);
  CHECK_LE(batch, options_.batch_max);
  if (train_ == nullptr) return Normalized(slot.targets(), slot.stored(), batch);
  return Gathered(*train_, slot.samples(), batch, options_.augment);
}

NetworkInput CudaInput::Evaluation(const Batch& batch) {
  // The copies below read the loader's own memory. The caller must synchronise before it asks the loader for the next
  // batch; CudaTrainingStep::Evaluate does.
  const int64_t count =
      train_ == nullptr ? batch.target_bytes() / shape_.batch_target_bytes() : std::ssize(batch.samples);
  CHECK_LE(count, options_.evaluation_batch_max);
  void* const head = evaluation_head_->data();
  if (train_ != nullptr) {
    device_.CopyToDevice(batch.samples.data(), head, count * kNumberBytes);
    // Evaluation is on the test set, which is never augmented.
    return Gathered(*test_, static_cast<const uint32_t*>(head), count, Loader::Augment::kNone);
  }
  device_.CopyToDevice(batch.target_data(), head, batch.target_bytes());
  device_.CopyToDevice(batch.stored.data(), evaluation_values_->data(), std::ssize(batch.stored));
  return Normalized(head, evaluation_values_->data(), count);
}

NetworkInput CudaInput::Normalized(const void* targets, const void* values, int64_t batch) {
  device_.NormalizeValues({.values = values,
                           .value_bytes = shape_.value_bytes(),
                           .count = batch * shape_.image_values(),
                           .channels = shape_.channels,
                           .offset = offset_->floats(),
                           .scale = scale_->floats(),
                           .out = Images()});
  return {.images = Images(), .targets = LossTargets(targets), .batch = batch};
}

NetworkInput CudaInput::Gathered(const Resident& data, const uint32_t* samples, int64_t batch,
                                 Loader::Augment augment) {
  const bool are_labels = shape_.target == TargetType::kClass;
  const void* const targets = data.targets->data();
  device_.GatherSamples({.batch = batch,
                         .height = shape_.height,
                         .width = shape_.width,
                         .channels = shape_.channels,
                         .samples = samples,
                         .value_bytes = shape_.value_bytes(),
                         .images = data.images->data(),
                         .labels = are_labels ? static_cast<const uint16_t*>(targets) : nullptr,
                         .targets = are_labels ? nullptr : static_cast<const float*>(targets),
                         .target_values = shape_.target_values,
                         .crop_padding = augment == Loader::Augment::kCropFlip ? kCropPadding : 0,
                         .seed = options_.seed,
                         .offset = offset_->floats(),
                         .scale = scale_->floats(),
                         .out_images = Images(),
                         .out_labels = static_cast<int32_t*>(targets_->data()),
                         .out_targets = targets_->floats()});
  return {.images = Images(), .targets = LossTargets(targets_->data()), .batch = batch};
}

}  // namespace starring
