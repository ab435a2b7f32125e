#include "worker/data/loader.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "worker/data/crop_flip.h"
#include "worker/data/pixel_normalizer.h"
#include "worker/data/prefetcher.h"

namespace starring {
namespace {

// Samples lie anywhere in memory, and the processor's own prefetching only starts inside an image. They are asked for
// into the second-level cache: the first has too few outstanding misses for whole images (measured: 200 ns of 600 for
// an image of 3072 bytes, where prefetching into the first level saved 70).
constexpr size_t kImagesAhead = 3;
constexpr int64_t kCacheLineBytes = 64;

void PrefetchBytes(const uint8_t* bytes, int64_t count) {
  constexpr int kForReading = 0;
  constexpr int kSecondLevel = 1;
  for (int64_t i = 0; i < count; i += kCacheLineBytes) __builtin_prefetch(bytes + i, kForReading, kSecondLevel);
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

class OwnMemory final : public BatchMemory {
 public:
  // Not initialised, so that the thread that fills a page first also places it.
  absl::StatusOr<std::byte*> Allocate(int64_t size_bytes) override {
    const auto rounded = static_cast<size_t>(RoundUpToBatchAlignment(size_bytes + 1));
    std::unique_ptr<std::byte, Free> block(static_cast<std::byte*>(std::aligned_alloc(kBatchAlignmentBytes, rounded)));
    if (block == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size_bytes, " bytes"));
    return blocks_.emplace_back(std::move(block)).get();
  }

 private:
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
};

struct Slot {
  Batch batch;
  int32_t* labels = nullptr;     // in batch.memory, as the next three; not of Format::kSamples
  uint32_t* samples = nullptr;   // of Format::kSamples
  float* images = nullptr;       // of Format::kNormalized
  uint8_t* pixels = nullptr;     // of Format::kPixels
  uint8_t* augmented = nullptr;  // one image, before it is normalised
  TraceTrack* track = nullptr;   // of whoever fills it
};

// Of a pixel in a batch.
int64_t ValueBytes(Loader::Format format) {
  switch (format) {
    case Loader::Format::kNormalized:
      return sizeof(float);
    case Loader::Format::kPixels:
      return sizeof(uint8_t);
    case Loader::Format::kSamples:
      break;
  }
  return 0;
}

absl::Status CheckRange(absl::string_view what, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("loader ", what, " is ", value, ", expected ", min, " to ", max));
}

class PrefetchingLoader : public Loader {
 public:
  explicit PrefetchingLoader(const Options& options)
      : dataset_(*options.dataset),
        seed_(options.sampler.seed),
        augment_(options.augment),
        format_(options.format),
        sampler_(options.sampler),
        normalizer_(options.normalization),
        slots_(static_cast<size_t>(Prefetcher::SlotCount(options.prefetch_depth))) {}

  absl::Status Start(const Options& options);
  absl::StatusOr<const Batch*> Next() override;

 private:
  absl::Status Allocate(BatchMemory* memory, Slot& slot);
  void Fill(Slot& slot) const;

  const Dataset& dataset_;
  const uint64_t seed_;
  const Augment augment_;
  const Format format_;
  Sampler sampler_;  // of the prefetcher's plan callback
  const PixelNormalizer normalizer_;
  OwnMemory own_memory_;
  std::vector<Slot> slots_;
  std::unique_ptr<Prefetcher> prefetcher_;  // last: its destructor stops what uses the rest
};

absl::Status PrefetchingLoader::Start(const Options& options) {
  BatchMemory* const memory = options.memory == nullptr ? &own_memory_ : options.memory;
  for (Slot& slot : slots_) {
    slot.track = AddTrack(options.trace, {.name = absl::StrCat("loader ", &slot - slots_.data())});
    RETURN_IF_ERROR(Allocate(memory, slot), "one of ", slots_.size(),
                    " batches of the loader (give a smaller --global_batch or --prefetch_depth)");
  }
  const auto plan = [this](int slot, int64_t step) {
    slots_[static_cast<size_t>(slot)].batch.plan = sampler_.Plan(step);
  };
  const auto fill = [this](int slot, int64_t step) {
    const TraceSpan span(slots_[static_cast<size_t>(slot)].track, "load", {.step = step});
    Fill(slots_[static_cast<size_t>(slot)]);
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(prefetcher_, Prefetcher::Create({.depth = options.prefetch_depth,
                                                    .filler_count = options.threads,
                                                    .first_step = options.first_step,
                                                    .end_step = options.end_step,
                                                    .deadline = options.deadline,
                                                    .plan = plan,
                                                    .fill = fill}));
  return absl::OkStatus();
}

absl::StatusOr<const Batch*> PrefetchingLoader::Next() {
  ASSIGN_OR_RETURN(const int slot, prefetcher_->Next());
  return &slots_[static_cast<size_t>(slot)].batch;
}

absl::Status PrefetchingLoader::Allocate(BatchMemory* memory, Slot& slot) {
  const BatchLayout layout = LayOutBatch(sampler_.local_batch_max(), dataset_.image_bytes() * ValueBytes(format_));
  ASSIGN_OR_RETURN(std::byte* const data, memory->Allocate(layout.size_bytes));
  slot.batch.memory = data;
  if (format_ == Format::kSamples) {
    slot.samples = reinterpret_cast<uint32_t*>(data);
    return absl::OkStatus();
  }
  slot.labels = reinterpret_cast<int32_t*>(data);
  if (format_ == Format::kNormalized) slot.images = reinterpret_cast<float*>(data + layout.values);
  if (format_ == Format::kPixels) slot.pixels = reinterpret_cast<uint8_t*>(data + layout.values);
  ASSIGN_OR_RETURN(std::byte* const augmented, own_memory_.Allocate(dataset_.image_bytes()));
  slot.augmented = reinterpret_cast<uint8_t*>(augmented);
  return absl::OkStatus();
}

void PrefetchingLoader::Fill(Slot& slot) const {
  const std::vector<int64_t>& samples = slot.batch.plan.samples;
  if (format_ == Format::kSamples) {
    std::transform(samples.begin(), samples.end(), slot.samples, [](int64_t i) { return static_cast<uint32_t>(i); });
    slot.batch.samples = {slot.samples, samples.size()};
    return;
  }
  const int64_t image_bytes = dataset_.image_bytes();
  const ImageShape shape{.height = dataset_.height, .width = dataset_.width, .channels = dataset_.channels};
  const size_t values = samples.size() * static_cast<size_t>(image_bytes);
  slot.batch.images = {slot.images, slot.images == nullptr ? 0 : values};
  slot.batch.pixels = {slot.pixels, slot.pixels == nullptr ? 0 : values};
  slot.batch.labels = {slot.labels, samples.size()};
  for (size_t i = 0; i < samples.size(); ++i) {
    const uint8_t* pixels = dataset_.images.data() + samples[i] * image_bytes;
    if (i + kImagesAhead < samples.size()) {
      PrefetchBytes(dataset_.images.data() + samples[i + kImagesAhead] * image_bytes, image_bytes);
    }
    const auto offset = static_cast<int64_t>(i) * image_bytes;
    uint8_t* const out = format_ == Format::kPixels ? slot.pixels + offset : slot.augmented;
    if (augment_ == Augment::kCropFlip) {
      ApplyCropFlip(DrawCropFlip(seed_, slot.batch.plan.epoch, samples[i]), shape, pixels, out);
      pixels = out;
    }
    if (format_ == Format::kNormalized) {
      normalizer_.Run(pixels, image_bytes, slot.images + offset);
    } else if (pixels != out) {
      std::memcpy(out, pixels, static_cast<size_t>(image_bytes));
    }
    slot.labels[i] = dataset_.labels[static_cast<size_t>(samples[i])];
  }
}

}  // namespace

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
  auto loader = std::make_unique<PrefetchingLoader>(options);
  RETURN_IF_ERROR(loader->Start(options));
  return loader;
}

}  // namespace starring
