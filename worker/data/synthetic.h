// Images out of nothing, for benchmarks and tests: any size, any number of classes, and something to learn.
#ifndef STARRING_WORKER_DATA_SYNTHETIC_H_
#define STARRING_WORKER_DATA_SYNTHETIC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace starring {

// The label of image i is i mod classes. A pixel is (pattern + 3 * noise) / 4, rounded down, where pattern is a random
// byte of the class and noise one of the image: every class has its own picture, under noise. All bytes come from
// Philox (seed, kSynthetic): byte b of a picture is byte b mod 16 (lowest first in each word) of block picture *
// ceil(image bytes / 16) + b / 16 of stream 0 (patterns), 1 (training) or 2 (test). So training and test set share the
// patterns.
//
// Reads the synthetic fields and the seed. InvalidArgument naming the field for a size below 1, more than 256 classes,
// a side above kImageSideMax, or a set above kDatasetBytesMax (common/limits.h).
absl::StatusOr<TrainAndTest> MakeSynthetic(const DatasetOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_SYNTHETIC_H_
