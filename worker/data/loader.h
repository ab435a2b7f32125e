// Turns batch plans into batches: gathers the samples, augments and normalises them, some batches before the trainer
// asks for them.
//
// The batches do not depend on the number of threads or the depth: Philox decides the augmentation of each sample
// (crop_flip.h), and everything else is a function of the sample's pixels.
//
// How to set it. One thread fills millions of MNIST samples a second (bench/loader_bench.cc), more than a model on the
// same core can use, so `threads` above 1 is for large images. With prefetch_depth 0 the loader has no thread, and Next
// fills the batch on the caller's thread. That is best where the trainer has a single core: a second thread would only
// take turns with it, and the batch is still in the cache when the model reads it.
// Evaluation uses Sampler::Order::kSequential, Augment::kNone and steps [0, the sampler's steps_per_epoch).
//
// Thread safety: one thread calls Next.
#ifndef STARRING_WORKER_DATA_LOADER_H_
#define STARRING_WORKER_DATA_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/memory.h"
#include "common/metrics/trace.h"
#include "worker/data/dataset.h"
#include "worker/data/normalization.h"
#include "worker/data/prefetcher.h"
#include "worker/data/sampler.h"

namespace starring {

// A batch is one block of memory, so that one copy can bring it to a GPU: labels or targets, then values. Both begin on
// a cache line's boundary, for vector instructions.
struct BatchLayout {
  int64_t values = 0;  // offset of `images` or `stored`
  int64_t size_bytes = 0;
};
// A sample takes Dataset::batch_target_bytes, or 4 bytes for its number, and `sample_bytes`.
constexpr BatchLayout LayOutBatch(int64_t samples_max, int64_t target_bytes, int64_t sample_bytes) {
  const int64_t values = RoundUp(samples_max * target_bytes, kCacheLineBytes);
  return {.values = values, .size_bytes = values + samples_max * sample_bytes};
}

// Memory for a loader's batches, supplied by a device that copies from it.
//
// Thread safety: one thread, the one that creates the loader. The loader divides the memory among its threads.
class BatchMemory {
 public:
  virtual ~BatchMemory() = default;  // must outlive the loader; frees everything it allocated

  // A block on a cache line's boundary, of unspecified content. ResourceExhausted with the number of bytes.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t size_bytes) = 0;
};

struct Batch {
  BatchPlan plan;
  std::span<const float> images;  // (plan.samples.size(), height, width, channels), normalised, 64-byte aligned
  // The bytes of the same values as the data set has them; either `images` or `stored` is empty.
  std::span<const uint8_t> stored;
  std::span<const int32_t> labels;    // with TargetType::kClass
  std::span<const float> targets;     // with the others: (samples, Dataset::target_values)
  std::span<const uint32_t> samples;  // only with Format::kSamples, then instead of all above: plan.samples
  const std::byte* memory = nullptr;  // the whole batch, by LayOutBatch of the largest batch: offsets never change

  // Labels or targets, whichever there are.
  const void* target_data() const {
    return targets.data() == nullptr ? static_cast<const void*>(labels.data()) : targets.data();
  }
  int64_t target_bytes() const { return static_cast<int64_t>(labels.size_bytes() + targets.size_bytes()); }
};

class Loader {
 public:
  using Augment = starring::Augment;
  // kStored leaves the normalising to a GPU, with NormalizerConstants: a quarter of the bytes of an image of pixels
  // travel there. kSamples leaves everything to a GPU that has the data set.
  enum class Format { kNormalized, kStored, kSamples };
  struct Options {
    const Dataset* dataset = nullptr;  // outlives the loader
    Sampler::Options sampler;          // its seed also decides the augmentation
    // A step has one batch for each of these ranks of the sampler, in this order. Empty: one batch, for sampler.rank.
    std::vector<int> parts;
    Normalization normalization;
    Augment augment = Augment::kNone;
    Format format = Format::kNormalized;
    int threads = 1;         // each fills whole batches; at most prefetch_depth of them work
    int prefetch_depth = 3;  // batches filled or being filled before Next asks; 0: Next fills, whatever `threads` is
    int64_t first_step = 0;
    int64_t end_step = 0;  // one past the last
    absl::Duration deadline = absl::Seconds(60);
    Trace* trace = nullptr;         // outlives the loader; may be null
    BatchMemory* memory = nullptr;  // outlives the loader; null: the loader allocates
  };

  // Allocates everything, prefetch_depth + 1 times the memory of the largest batch: images and labels are not allocated
  // later. InvalidArgument for threads or prefetch_depth outside common/base/limits.h, or a normalization of another
  // type or number of channels; ResourceExhausted with the number of bytes if the batches do not fit.
  // REQUIRES: dataset; sampler.sample_count <= dataset->count.
  static absl::StatusOr<std::unique_ptr<Loader>> Create(const Options& options);

  // At any moment. Waits until the batches that are being filled are complete.
  ~Loader();

  // The next batch, in the order of steps and of a step's parts. It is valid until the next call, which gives its
  // memory to a later batch: a copy from it must have finished by then. OutOfRange after those of end_step - 1;
  // DeadlineExceeded, naming the step, if the batch is not filled in time; DataLoss if the file of a mapped data set
  // was cut or changed.
  absl::StatusOr<const Batch*> Next();

  // Takes the memory of the batch that the last Next has returned out of the loader, for a caller who wants to keep the
  // batch, and gives the loader `fresh` in its place. The Batch keeps pointing to the old memory until the next call of
  // Next.
  // REQUIRES: Options::memory, of which `fresh` is a block as long as those of the loader; the last Next has returned a
  // batch, whose memory is still the loader's.
  void ReplaceMemory(std::byte* fresh);

 private:
  class OwnMemory;
  // One batch, its memory, and the places in it that a filler writes to; those that the format does not have are null.
  struct Slot {
    Batch batch;
    std::byte* memory = nullptr;
    int32_t* labels = nullptr;
    float* targets = nullptr;
    uint32_t* samples = nullptr;
    float* images = nullptr;
    uint8_t* stored = nullptr;
    uint8_t* augmented = nullptr;  // one image, before it is normalised
    uint8_t* decoded = nullptr;    // one image of a mapped set, before it is augmented; null if it is not
    TraceTrack* track = nullptr;   // of the thread that fills the slot
    absl::Status read;             // of the batch: DataLoss if a mapped file was cut or changed before it was filled
  };

  explicit Loader(const Options& options);
  absl::Status Start();
  absl::Status Allocate(BatchMemory* memory, Slot& slot);
  BatchLayout Layout() const;
  void Place(std::byte* memory, Slot& slot) const;
  void Fill(Slot& slot) const;
  void FillImage(const Slot& slot, int64_t number) const;
  void NormalizeInPieces(const uint8_t* stored, uint8_t* piece, float* out) const;

  const Options options_;
  const Dataset& dataset_;
  Sampler sampler_;  // only the prefetcher's `plan` uses it
  const Normalizer normalizer_;
  const std::unique_ptr<OwnMemory> own_memory_;
  std::vector<Slot> slots_;
  Slot* taken_ = nullptr;                   // the slot of the batch that the last Next has returned
  std::unique_ptr<Prefetcher> prefetcher_;  // last, so that its threads end before the members that they use
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_LOADER_H_
