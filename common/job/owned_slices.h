// The slices of the parameter vector that one process owns: their optimizer state and their updates. This is the one
// owner that a star's server, a ring's rank and a local run share. The parameters themselves are lent by the caller.
//
// Every bucket advances alone: there is no barrier over buckets. A bucket's *step in progress* is the step whose update
// is not complete yet; it starts at Options::first_step.
//
// Thread safety: one thread at a time; pieces of one bucket's step may be updated by several threads at the same time.
#ifndef STARRING_COMMON_JOB_OWNED_SLICES_H_
#define STARRING_COMMON_JOB_OWNED_SLICES_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/memory.h"
#include "common/job/layout.h"
#include "common/job/slice_places.h"

namespace starring {

// One piece of a bucket's update. All spans have the length of the piece.
struct SlicePiece {
  int64_t step = 0;
  int bucket = 0;
  int64_t offset = 0;                    // of the piece in the bucket's slice
  std::span<const float> gradient;       // summed over all workers
  std::span<const float> parameters_in;  // before the update
  std::span<float> parameters_out;       // after it; may be `parameters_in`
};

// The same, in place, for a piece that is named by its elements of the parameter vector.
struct ApplyArgs {
  int64_t step = 0;
  int bucket = 0;
  ElementRange range;           // inside one range that is owned of `bucket`
  std::span<const float> sum;   // the gradient, summed over all workers, or over all but the one of `last`
  std::span<const float> last;  // empty, or the last worker's gradient: it is added in the same pass over memory
  std::span<float> parameters;
};

class OwnedSlices {
 public:
  struct Options {
    // slices[b]: the ranges of bucket b that are owned, ascending. Star: one range. Ring: one range per block. May be
    // empty.
    std::vector<std::vector<ElementRange>> slices;
    int64_t element_count = 0;  // of the whole parameter vector
    int64_t first_step = 0;
    OptimizerConfig optimizer;
    LearningRateSchedule schedule;
  };
  // A sum of this many elements stays in the L1 cache, where the optimizer reads it at once. Half as many cost a tenth
  // when everything is in the L2 cache, twice as many a tenth when nothing is (bench/common_bench.cc).
  static constexpr int64_t kPassElements = 1024;

  // Optimizer state starts at zero. InvalidArgument if an option is out of bounds, or if a range overlaps another one
  // or exceeds the vector.
  static absl::StatusOr<OwnedSlices> Create(Options options);

  int bucket_count() const { return places_.bucket_count(); }
  int64_t first_step() const { return options_.first_step; }
  int64_t element_count() const { return options_.element_count; }

  // The ranges of `bucket` that are owned, ascending; adjacent ranges are joined. REQUIRES: 0 <= bucket <
  // bucket_count().
  const std::vector<ElementRange>& ranges(int bucket) const { return places_.ranges(bucket); }
  int64_t slice_element_count(int bucket) const { return places_.slice(bucket).size(); }

  // Applies the optimizer to one piece. The bucket's step is over when its pieces add up to the slice.
  // REQUIRES: `step` is the bucket's step in progress; every element is updated once a step.
  void Update(const SlicePiece& piece);
  void Apply(const ApplyArgs& args);

  // State vector `vector` of the bucket's slice, ascending by element. Changes with each Update.
  // REQUIRES: 0 <= vector < StateVectorCount(options.optimizer).
  std::span<float> state(int bucket, int vector);
  std::span<const float> state(int bucket, int vector) const;

  // Copies the state of everything owned to or from vectors of element_count elements; other elements are left alone.
  // REQUIRES: one span per state vector.
  void CopyStateOut(std::span<const std::span<float>> whole) const;
  void CopyStateIn(std::span<const std::span<const float>> whole);

 private:
  // A bucket's.
  struct Progress {
    int64_t step = 0;           // in progress
    int64_t updated_count = 0;  // elements that are updated already in that step
  };

  // The values that all passes over a piece share. They are looked up once a piece: a pass takes a quarter of a
  // microsecond.
  struct Piece {
    int64_t update = 0;  // counted from 1
    float learning_rate = 0;
    std::array<std::span<float>, 2> state;  // of the piece, from each state vector
  };

  explicit OwnedSlices(Options options);
  // An update of `count` elements from `offset` in the slice is Begin, Optimize for each pass, and End.
  Piece Begin(int64_t step, int bucket, int64_t offset, int64_t count);
  // begin: of the pass in the piece. The spans have the pass's length.
  void Optimize(const Piece& piece, int64_t begin, std::span<const float> gradient,
                std::span<const float> parameters_in, std::span<float> parameters_out);
  void End(int bucket, int64_t count);

  Options options_;
  SlicePlaces places_;
  std::vector<AlignedFloats> state_;
  std::vector<Progress> progress_;  // by bucket
};

}  // namespace starring

#endif  // STARRING_COMMON_JOB_OWNED_SLICES_H_
