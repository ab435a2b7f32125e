#include "worker/data/loader.h"

#include <cstdlib>
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
#include "worker/data/parallel_ranges.h"
#include "worker/data/pixel_normalizer.h"
#include "worker/data/prefetcher.h"

namespace starring {
namespace {

constexpr size_t kAlignmentBytes = 64;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
using AlignedArray = std::unique_ptr<T[], Free>;

// Not initialised, so that the thread that fills a page first also places it. Null when there is no memory.
template <typename T>
AlignedArray<T> AllocateAligned(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  const size_t rounded = (bytes / kAlignmentBytes + 1) * kAlignmentBytes;
  return AlignedArray<T>(static_cast<T*>(std::aligned_alloc(kAlignmentBytes, rounded)));
}

struct Slot {
  Batch batch;
  AlignedArray<float> images;
  AlignedArray<int32_t> labels;
};

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
        threads_(options.threads),
        sampler_(options.sampler),
        normalizer_(options.normalization),
        slots_(static_cast<size_t>(Prefetcher::SlotCount(options.prefetch_depth))),
        scratch_(static_cast<size_t>(options.threads)) {}

  absl::Status Start(const Options& options);
  absl::StatusOr<const Batch*> Next() override;

 private:
  void Fill(Slot& slot, int64_t step);
  void FillRange(const BatchPlan& plan, int64_t begin, int64_t end, uint8_t* scratch, Slot& slot) const;

  const Dataset& dataset_;
  const uint64_t seed_;
  const Augment augment_;
  const int threads_;
  Sampler sampler_;
  const PixelNormalizer normalizer_;
  std::vector<Slot> slots_;
  std::vector<AlignedArray<uint8_t>> scratch_;  // one augmented image for each thread
  std::unique_ptr<Prefetcher> prefetcher_;      // last: its destructor stops what uses the rest
};

absl::Status PrefetchingLoader::Start(const Options& options) {
  const int64_t image_values = sampler_.local_batch_max() * dataset_.image_bytes();
  for (Slot& slot : slots_) {
    slot.images = AllocateAligned<float>(image_values);
    slot.labels = AllocateAligned<int32_t>(sampler_.local_batch_max());
    if (slot.images == nullptr || slot.labels == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", slots_.size(), " batches of ",
                                                       image_values * sizeof(float),
                                                       " bytes: give a smaller --global_batch"));
    }
  }
  for (AlignedArray<uint8_t>& image : scratch_) {
    image = AllocateAligned<uint8_t>(dataset_.image_bytes());
    if (image == nullptr) return absl::ResourceExhaustedError("no memory for one image");
  }
  ASSIGN_OR_RETURN(prefetcher_, Prefetcher::Create({.depth = options.prefetch_depth,
                                                    .first_step = options.first_step,
                                                    .end_step = options.end_step,
                                                    .deadline = options.deadline,
                                                    .fill = [this](int slot, int64_t step) {
                                                      Fill(slots_[static_cast<size_t>(slot)], step);
                                                      return absl::OkStatus();
                                                    }}));
  return absl::OkStatus();
}

absl::StatusOr<const Batch*> PrefetchingLoader::Next() {
  ASSIGN_OR_RETURN(const int slot, prefetcher_->Next());
  return &slots_[static_cast<size_t>(slot)].batch;
}

void PrefetchingLoader::Fill(Slot& slot, int64_t step) {
  Batch& batch = slot.batch;
  batch.plan = sampler_.Plan(step);
  const size_t count = batch.plan.samples.size();
  batch.images = {slot.images.get(), count * static_cast<size_t>(dataset_.image_bytes())};
  batch.labels = {slot.labels.get(), count};
  ParallelRanges(threads_, static_cast<int64_t>(count), [&](int part, int64_t begin, int64_t end) {
    FillRange(batch.plan, begin, end, scratch_[static_cast<size_t>(part)].get(), slot);
  });
}

void PrefetchingLoader::FillRange(const BatchPlan& plan, int64_t begin, int64_t end, uint8_t* scratch,
                                  Slot& slot) const {
  const int64_t image_bytes = dataset_.image_bytes();
  const ImageShape shape{.height = dataset_.height, .width = dataset_.width, .channels = dataset_.channels};
  for (int64_t i = begin; i < end; ++i) {
    const int64_t sample = plan.samples[static_cast<size_t>(i)];
    const uint8_t* pixels = dataset_.images.data() + sample * image_bytes;
    if (augment_ == Augment::kCropFlip) {
      ApplyCropFlip(DrawCropFlip(seed_, plan.epoch, sample), shape, pixels, scratch);
      pixels = scratch;
    }
    normalizer_.Run(pixels, image_bytes, slot.images.get() + i * image_bytes);
    slot.labels[static_cast<size_t>(i)] = dataset_.labels[static_cast<size_t>(sample)];
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
