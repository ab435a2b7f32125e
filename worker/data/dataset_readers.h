// Where the images of LoadDataset come from: IDX files, CIFAR-10's files, and random numbers.
//
// A reader allocates nothing that a header promises before the file is known to be long enough for it, and computes the
// checksums of images and labels while it reads. DataLoss names the file, what was expected and what was found.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_DATA_DATASET_READERS_H_
#define STARRING_WORKER_DATA_DATASET_READERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/limits.h"
#include "worker/data/dataset.h"

namespace starring {

struct IdxFiles {
  std::string images;  // paths; each file is plain or gzipped
  std::string labels;
  int64_t classes = 10;
};

// IDX files, the format of MNIST and Fashion-MNIST (http://yann.lecun.com/exdb/mnist): big-endian 32-bit words, then
// unsigned bytes. Images: 0x00000803, count, rows, columns, then pixels. Labels: 0x00000801, count, then labels.
// The images have one channel. The files must contain exactly what their headers say. DataLoss: a wrong magic number,
// no images or more than common/base/limits.h allows, data that ends early or is too long, counts that disagree, a
// label that is not below `classes`.
absl::StatusOr<Dataset> ReadIdx(const IdxFiles& files);

struct CifarFiles {
  std::vector<std::string> paths;  // each file is plain or gzipped; read in this order
  int64_t bytes_max = kDatasetBytesMax;
};

// CIFAR-10's binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of 3073 bytes, one label, then 1024
// red, 1024 green and 1024 blue pixels, each plane row by row. Returns images (32, 32, 3), with the planes interleaved.
// Each file has one record or more. DataLoss: a part of a record at the end, a label above 9, more than bytes_max bytes
// of images in all files together.
// REQUIRES: at least one path.
absl::StatusOr<Dataset> ReadCifar10(const CifarFiles& files);

// Random images for benchmarks and tests: any size, any number of classes, and something to learn.
//
// The label of image i is i mod classes. A pixel is (pattern + 3 * noise) / 4, rounded down, where pattern is a random
// byte of the class and noise one of the image: every class has its own picture, under noise. All bytes come from
// Philox (seed, kSynthetic): byte b of a picture is byte b mod 16 (lowest first in each word) of block picture *
// ceil(image bytes / 16) + b / 16 of stream 0 (patterns), 1 (training) or 2 (test). So training and test set share the
// patterns.
//
// Uses the synthetic fields and the seed. InvalidArgument naming the field for a size below 1, more than 256 classes,
// a side above kImageSideMax, or a set above kDatasetBytesMax (common/base/limits.h).
absl::StatusOr<TrainAndTest> MakeSynthetic(const DatasetOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_DATASET_READERS_H_
