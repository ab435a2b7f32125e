// Turns plans into batches: gathers, augments, normalises; OpenMP threads inside, a few batches ahead of the trainer.
//
// The same batch comes out whatever the number of threads and the depth: augmentation of a sample is decided by Philox
// (seed, kAugment, epoch, sample index).
#ifndef STARRING_WORKER_DATA_LOADER_H_
#define STARRING_WORKER_DATA_LOADER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"

namespace starring {

// Per channel, in units of pixel / 255. From sums over the training images; `values` (see below) add up over ranks.
struct Normalization {
  std::vector<float> mean;
  std::vector<float> deviation;
};
// Sum and sum of squares per channel, then the count, of images [begin, end): integers held exactly by double, so that
// the sum over ranks does not depend on how the images were cut. Length 2 * channels + 1.
std::vector<double> PixelSums(const Dataset& dataset, int64_t begin, int64_t end);
Normalization NormalizationFromSums(std::span<const double> sums);

struct Batch {
  BatchPlan plan;
  std::span<const float> images;  // (plan.samples.size(), height, width, channels), normalised, 64-byte aligned
  std::span<const int32_t> labels;
};

class Loader {
 public:
  enum class Augment { kNone, kCropFlip };  // zero-pad by 4, random crop to size, flip left-right with probability 1/2
  struct Options {
    const Dataset* dataset = nullptr;  // outlives the loader
    Sampler::Options sampler;
    Normalization normalization;
    Augment augment = Augment::kNone;
    int threads = 1;         // OpenMP threads that fill one batch
    int prefetch_depth = 3;  // batches ready ahead of Next
    int64_t first_step = 0;
    int64_t end_step = 0;  // one past the last
    absl::Duration deadline = absl::Seconds(60);
  };
  static absl::StatusOr<std::unique_ptr<Loader>> Create(const Options& options);
  virtual ~Loader() = default;

  // The batch of the next step, in order. It is valid until the call after (so one may be used while nothing else is
  // asked). OutOfRange after end_step - 1.
  virtual absl::StatusOr<const Batch*> Next() = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_LOADER_H_
