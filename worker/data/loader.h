// Turns plans into batches: gathers, augments, normalises, a few batches ahead of the trainer.
//
// The same batch comes out whatever the number of threads and the depth: the augmentation of a sample is decided by
// Philox (crop_flip.h), everything else is a function of its pixels.
//
// How to set it: one thread fills millions of MNIST samples a second (bench/loader_bench.cc), more than a model on the
// same core can use, so `threads` above 1 is for large images. With prefetch_depth 0 the loader has no thread at all
// and Next fills the batch on the caller's: best where the trainer has a single core, on which a second thread would
// only take turns with it; and the batch is then still in the cache when the model reads it.
// Evaluation: Sampler::Order::kSequential, Augment::kNone, steps [0, sampler's steps_per_epoch).
//
// Thread safety: one thread calls Next.
#ifndef STARRING_WORKER_DATA_LOADER_H_
#define STARRING_WORKER_DATA_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/trace.h"
#include "worker/data/batch_memory.h"
#include "worker/data/dataset.h"
#include "worker/data/normalization.h"
#include "worker/data/sampler.h"

namespace starring {

struct Batch {
  BatchPlan plan;
  std::span<const float> images;    // (plan.samples.size(), height, width, channels), normalised, 64-byte aligned
  std::span<const uint8_t> pixels;  // likewise, not normalised; one of the two is empty
  std::span<const int32_t> labels;
  std::span<const uint32_t> samples;  // of Format::kSamples, which has none of the three above: plan.samples
  const std::byte* memory = nullptr;  // all of it, by BatchLayout of the largest batch: the same places in every batch
};

class Loader {
 public:
  enum class Augment { kNone, kCropFlip };  // zero-pad by 4, random crop to size, flip left-right with probability 1/2
  // kPixels leaves the normalising to a GPU, with PixelConstants: a quarter of the bytes travel there. kSamples leaves
  // everything to a GPU that has the data set itself.
  enum class Format { kNormalized, kPixels, kSamples };
  struct Options {
    const Dataset* dataset = nullptr;  // outlives the loader
    Sampler::Options sampler;          // seed also decides the augmentation
    Normalization normalization;
    Augment augment = Augment::kNone;
    Format format = Format::kNormalized;
    int threads = 1;         // an OpenMP team, each member of which fills whole batches; at most prefetch_depth work
    int prefetch_depth = 3;  // batches ready or being filled ahead of Next; 0: filled by Next, whatever `threads`
    int64_t first_step = 0;
    int64_t end_step = 0;  // one past the last
    absl::Duration deadline = absl::Seconds(60);
    Trace* trace = nullptr;         // outlives the loader; null: there is none
    BatchMemory* memory = nullptr;  // outlives the loader; null: the loader's own
  };

  // Allocates everything, prefetch_depth + 1 times the memory of the largest batch: no allocation of images or labels
  // happens later. InvalidArgument for threads or prefetch_depth outside common/limits.h, or a normalization of another
  // number of channels; ResourceExhausted with the number of bytes when the batches do not fit.
  // REQUIRES: dataset; sampler.sample_count <= dataset->count.
  static absl::StatusOr<std::unique_ptr<Loader>> Create(const Options& options);

  // At any moment: waits for the batches being filled and no longer.
  virtual ~Loader() = default;

  // The batch of the next step, in order. It is valid until the next call, which gives its memory to a later batch: who
  // copies from there has to be done. OutOfRange after end_step - 1; DeadlineExceeded, naming the step, when it is not
  // ready in time.
  virtual absl::StatusOr<const Batch*> Next() = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_LOADER_H_
