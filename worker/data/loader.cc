#include "worker/data/loader.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "worker/data/crop_flip.h"
#include "worker/data/files/sample_layout.h"

namespace starring {
namespace {

// Shuffled samples are anywhere in memory, and the processor's own prefetching starts only inside an image. So later
// images are prefetched, into the second-level cache: the first has too few outstanding misses for whole images (an
// image of 3072 bytes takes 600 ns; this saves 200 of them, prefetching into the first level saved 70).
constexpr size_t kImagesAhead = 3;
// A larger image is prefetched at its beginning only: the processor itself goes on, and more requests would
// take the places of misses that the present image waits for.
constexpr int64_t kPrefetchedBytesMax = 4096;
// Numbers that are converted at a time: 6 KiB of floats, which stay in the first-level cache.
constexpr int64_t kPieceValues = 1536;

void PrefetchBytes(const uint8_t* bytes, int64_t count) {
  constexpr int kForReading = 0;
  constexpr int kSecondLevel = 1;
  const int64_t end = std::min(count, kPrefetchedBytesMax);
  for (int64_t i = 0; i < end; i += kCacheLineBytes) __builtin_prefetch(bytes + i, kForReading, kSecondLevel);
  // An image that does not begin with a cache line has a part in one line more.
  __builtin_prefetch(bytes + end - 1, kForReading, kSecondLevel);
}

// Bytes of an image in a batch; 0 if the batch has no images.
int64_t ImageBytes(const Dataset& dataset, Loader::Format format) {
  switch (format) {
    case Loader::Format::kNormalized:
      return dataset.image_values() * static_cast<int64_t>(sizeof(float));
    case Loader::Format::kStored:
      return dataset.image_bytes();
    case Loader::Format::kSamples:
      break;
  }
  return 0;
}

// Whether the numbers of a mapped set are not floats, or not where a float may be.
bool ConvertsNumbers(const Dataset& dataset) {
  return dataset.type == FieldType::kNumbers && dataset.mapped != nullptr && dataset.mapped->decodes();
}

absl::Status CheckRange(absl::string_view what, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("loader ", what, " is ", value, ", expected ", min, " to ", max));
}

}  // namespace

class Loader::OwnMemory final : public BatchMemory {
 public:
  absl::StatusOr<std::byte*> Allocate(int64_t size_bytes) override {
    // The content is undefined, so that the filler is the first to write to a page and decides on which NUMA node it
    // is.
    blocks_.emplace_back(size_bytes, AlignedMemory::Content::kUndefined);
    if (blocks_.back().data() != nullptr) return blocks_.back().data();
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size_bytes, " bytes"));
  }

 private:
  std::vector<AlignedMemory> blocks_;
};

Loader::Loader(const Options& options)
    : options_(options),
      dataset_(*options.dataset),
      sampler_(options.sampler),
      normalizer_(options.normalization),
      own_memory_(std::make_unique<OwnMemory>()),
      slots_(static_cast<size_t>(Prefetcher::SlotCount(options.prefetch_depth))) {}

Loader::~Loader() = default;

absl::Status Loader::Start() {
  BatchMemory* const memory = options_.memory == nullptr ? own_memory_.get() : options_.memory;
  for (Slot& slot : slots_) {
    // Each slot has a track, because a track takes events from one thread at a time, and one thread at a time fills a
    // slot.
    slot.track = AddTrack(options_.trace, {.name = absl::StrCat("loader ", &slot - slots_.data())});
    RETURN_IF_ERROR(Allocate(memory, slot), "one of ", slots_.size(),
                    " batches of the loader (give a smaller --global_batch or --prefetch_depth)");
  }
  // Each slot is filled with one part of a step. The sampler keeps the permutation of an epoch, so plans must be made
  // one after the other. Filling does not touch the sampler.
  const auto part_count = std::ssize(options_.parts);
  const auto plan = [this, part_count](int slot, int64_t number) {
    const int part = options_.parts[static_cast<size_t>(number % part_count)];
    slots_[static_cast<size_t>(slot)].batch.plan = sampler_.Plan(number / part_count, part);
  };
  const auto fill = [this, part_count](int slot, int64_t number) {
    const TraceSpan span(slots_[static_cast<size_t>(slot)].track, "load", {.step = number / part_count});
    Fill(slots_[static_cast<size_t>(slot)]);
  };
  ASSIGN_OR_RETURN(prefetcher_, Prefetcher::Create({.depth = options_.prefetch_depth,
                                                    .filler_count = options_.threads,
                                                    .first_step = options_.first_step * part_count,
                                                    .end_step = options_.end_step * part_count,
                                                    .parts = part_count,
                                                    .deadline = options_.deadline,
                                                    .plan = plan,
                                                    .fill = fill}));
  return absl::OkStatus();
}

absl::StatusOr<const Batch*> Loader::Next() {
  // After an error no batch is the caller's, and ReplaceMemory refuses.
  taken_ = nullptr;
  ASSIGN_OR_RETURN(const int slot, prefetcher_->Next());
  // A filler may meet a changed file steps ahead. The error comes with the batch that it may have spoiled.
  RETURN_IF_ERROR(slots_[static_cast<size_t>(slot)].read);
  taken_ = &slots_[static_cast<size_t>(slot)];
  return &taken_->batch;
}

void Loader::ReplaceMemory(std::byte* fresh) {
  CHECK(options_.memory != nullptr && taken_ != nullptr && fresh != taken_->memory);
  // The slot is the caller's until the next Next, so no filler reads it now.
  Place(fresh, *taken_);
}

// A slot has room for the largest share of any step, so that no later batch needs an allocation.
BatchLayout Loader::Layout() const {
  const bool are_numbers = options_.format == Format::kSamples;
  return LayOutBatch(sampler_.local_batch_max(),
                     are_numbers ? static_cast<int64_t>(sizeof(uint32_t)) : dataset_.batch_target_bytes(),
                     ImageBytes(dataset_, options_.format));
}

absl::Status Loader::Allocate(BatchMemory* memory, Slot& slot) {
  ASSIGN_OR_RETURN(std::byte* const data, memory->Allocate(Layout().size_bytes));
  Place(data, slot);
  if (options_.format == Format::kSamples) return absl::OkStatus();
  // This image is never copied to a GPU, so it does not use the device's memory, which may be pinned.
  ASSIGN_OR_RETURN(std::byte* const augmented, own_memory_->Allocate(dataset_.image_bytes()));
  slot.augmented = reinterpret_cast<uint8_t*>(augmented);
  const bool decodes = dataset_.mapped != nullptr && dataset_.mapped->decodes();
  if (!decodes || options_.augment == Augment::kNone) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::byte* const decoded, own_memory_->Allocate(dataset_.image_bytes()));
  slot.decoded = reinterpret_cast<uint8_t*>(decoded);
  return absl::OkStatus();
}

void Loader::Place(std::byte* memory, Slot& slot) const {
  std::byte* const values = memory + Layout().values;
  slot.memory = memory;
  if (options_.format == Format::kSamples) {
    slot.samples = reinterpret_cast<uint32_t*>(memory);
    return;
  }
  if (dataset_.target == TargetType::kClass) {
    slot.labels = reinterpret_cast<int32_t*>(memory);
  } else {
    slot.targets = reinterpret_cast<float*>(memory);
  }
  if (options_.format == Format::kNormalized) slot.images = reinterpret_cast<float*>(values);
  if (options_.format == Format::kStored) slot.stored = reinterpret_cast<uint8_t*>(values);
}

void Loader::Fill(Slot& slot) const {
  const std::vector<int64_t>& samples = slot.batch.plan.samples;
  // The batch's pointers are set for every batch: the slot may have other memory, and the last batch of an epoch may be
  // smaller.
  slot.batch.memory = slot.memory;
  if (options_.format == Format::kSamples) {
    // The sampler refuses data sets whose samples do not fit 32 bits.
    std::transform(samples.begin(), samples.end(), slot.samples, [](int64_t i) { return static_cast<uint32_t>(i); });
    slot.batch.samples = {slot.samples, samples.size()};
    return;
  }
  const int64_t image_bytes = dataset_.image_bytes(), image_values = dataset_.image_values();
  const int64_t stored_bytes = dataset_.stored_image_bytes();
  const auto size = [&](const void* data, int64_t one) { return data == nullptr ? 0 : samples.size() * one; };
  slot.batch.images = {slot.images, size(slot.images, image_values)};
  slot.batch.stored = {slot.stored, size(slot.stored, image_bytes)};
  slot.batch.labels = {slot.labels, size(slot.labels, 1)};
  slot.batch.targets = {slot.targets, size(slot.targets, dataset_.target_values)};
  if (dataset_.mapped != nullptr) dataset_.mapped->AskAhead(samples);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i + kImagesAhead < samples.size()) {
      PrefetchBytes(dataset_.StoredImage(samples[i + kImagesAhead]), stored_bytes);
    }
    const auto number = static_cast<int64_t>(i);
    FillImage(slot, number);
    if (slot.labels != nullptr) {
      slot.labels[i] = dataset_.labels[static_cast<size_t>(samples[i])];
    } else {
      std::copy_n(dataset_.targets.data() + samples[i] * dataset_.target_values, dataset_.target_values,
                  slot.targets + number * dataset_.target_values);
    }
  }
  // After the reads, so no step is done with what a changed file has. A call for each file, which a file server may
  // have to answer, is here in a thread that works ahead.
  if (dataset_.mapped != nullptr) slot.read = dataset_.mapped->Check();
}

void Loader::FillImage(const Slot& slot, int64_t number) const {
  const int64_t image_bytes = dataset_.image_bytes(), image_values = dataset_.image_values();
  const int64_t sample = slot.batch.plan.samples[static_cast<size_t>(number)];
  const bool crops = options_.augment == Augment::kCropFlip;
  // For a GPU the pixels are the batch; on a CPU they go through one image's buffer, which stays in the cache until it
  // is normalised.
  uint8_t* const out = options_.format == Format::kStored ? slot.stored + number * image_bytes : slot.augmented;
  if (options_.format == Format::kNormalized && !crops && ConvertsNumbers(dataset_)) {
    return NormalizeInPieces(dataset_.StoredImage(sample), out, slot.images + number * image_values);
  }
  // A crop is not made in place.
  const uint8_t* pixels = dataset_.Image(sample, crops ? slot.decoded : out);
  if (crops) {
    // Pixels move as a whole, so the bytes of their channels are as good as channels.
    const ImageShape shape{
        .height = dataset_.height, .width = dataset_.width, .channels = dataset_.channels * dataset_.value_bytes()};
    ApplyCropFlip(DrawCropFlip(options_.sampler.seed, slot.batch.plan.epoch, sample), shape, pixels, out);
    pixels = out;
  }
  if (options_.format == Format::kNormalized) {
    normalizer_.Run(pixels, image_values, slot.images + number * image_values);
  } else if (pixels != out) {
    std::memcpy(out, pixels, static_cast<size_t>(image_bytes));
  }
}

// A sample of numbers may be larger than the first-level cache, so each piece is normalised right after it is
// converted.
void Loader::NormalizeInPieces(const uint8_t* stored, uint8_t* piece, float* out) const {
  SampleLayout layout = dataset_.mapped->layout();
  layout.height = layout.channels = 1;
  for (int64_t first = 0; first < dataset_.image_values(); first += kPieceValues) {
    layout.width = std::min(kPieceValues, dataset_.image_values() - first);
    DecodeSample(layout, stored, piece);
    normalizer_.Run(piece, layout.values(), out + first, first);
    stored += layout.stored_bytes();
  }
}

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(const Options& options) {
  CHECK(options.dataset != nullptr);
  CHECK_LE(options.sampler.sample_count, options.dataset->count);
  RETURN_IF_ERROR(CheckRange("threads", options.threads, 1, kLoaderThreadsMax));
  RETURN_IF_ERROR(CheckRange("prefetch_depth", options.prefetch_depth, 0, kPrefetchDepthMax));
  const auto channels = static_cast<size_t>(options.dataset->channels);
  if (options.normalization.mean.size() != channels || options.normalization.deviation.size() != channels) {
    return absl::InvalidArgumentError(absl::StrCat("normalization has ", options.normalization.mean.size(),
                                                   " means and ", options.normalization.deviation.size(),
                                                   " deviations, the images have ", channels, " channels"));
  }
  if (options.normalization.type != options.dataset->type) {
    return absl::InvalidArgumentError("the normalization is of another type of values than the data set");
  }
  if (options.augment == Augment::kCropFlip && options.dataset->height * options.dataset->width == 1) {
    return absl::InvalidArgumentError("crop_flip needs images, the data set has columns: leave --augment out");
  }
  // Another library may have taken SIGBUS since the file was mapped, as Python's faulthandler does.
  if (options.dataset->mapped != nullptr) MappedFile::CatchBusErrors();
  Options completed = options;
  // Without micro-batches a step has one part, which is the rank's share.
  if (completed.parts.empty()) completed.parts = {options.sampler.rank};
  std::unique_ptr<Loader> loader(new Loader(completed));
  RETURN_IF_ERROR(loader->Start());
  return loader;
}

}  // namespace starring
