// Where the samples of LoadDataset come from: IDX files, CIFAR's files, NumPy's arrays, tables, and random numbers.
//
// A set from files has as many classes as its largest label needs.
//
// Images in files that are not compressed may be mapped instead of copied (worker/data/mapped_samples.h). Their limit
// of bytes is then that of the file. They are read once all the same, for their checksum.
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
#include "worker/data/files/byte_stream.h"

namespace starring {

struct IdxFiles {
  std::string images;  // paths; each file is plain or gzipped
  std::string labels;
  // The files have the pixels of an image column by column, as EMNIST's do; the images are turned upright.
  bool transposed = false;
  MapData map = MapData::kAuto;  // the images
};

// IDX files, the format of MNIST and Fashion-MNIST (http://yann.lecun.com/exdb/mnist): big-endian 32-bit words, then
// unsigned bytes. Images: 0x00000803, count, rows, columns, then pixels. Labels: 0x00000801, count, then labels.
// The images have one channel. The files must contain exactly what their headers say. DataLoss: a wrong magic number,
// no images or more than common/base/limits.h allows, data that ends early or is too long, counts that disagree.
absl::StatusOr<Dataset> ReadIdx(const IdxFiles& files);

struct CifarFiles {
  std::vector<std::string> paths;  // each file is plain or gzipped; read in this order
  int64_t label_bytes = 1;         // of a record: 1 in CIFAR-10, 2 in CIFAR-100 (coarse, then fine)
  int64_t label = 0;               // which of them is the class
  MapData map = MapData::kAuto;
  int64_t bytes_max = kDatasetBytesMax;
};

// CIFAR's binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of one label or two, then 1024 red,
// 1024 green and 1024 blue pixels, each plane row by row. Returns images (32, 32, 3), with the planes interleaved. Each
// file has one record or more. DataLoss: a part of a record at the end, more than bytes_max bytes of images in all
// files together. REQUIRES: at least one path; label < label_bytes.
absl::StatusOr<Dataset> ReadCifar(const CifarFiles& files);

// NumPy's arrays (worker/data/files/npy_array.h): pixels as uint8, or numbers as float16, float32 or float64, which are
// rounded to float32; (samples, height, width), (samples, height, width, channels) or (samples, columns), the last as
// images of one pixel. The type of the labels says what they are:
//   integers, (samples) or (samples, 1)                                    classes, 0 to 65535
//   float16, float32 or float64, (samples) or (samples, values)            numbers
//   bool, (samples) or (samples, values); uint8, (samples, 2 or more)      bits, 0 or 1
// DataLoss: another type or shape, a size that common/base/limits.h forbids, a number that is not finite, a label or
// bit out of its range, and all that ReadNpyHeader refuses. Images whose channels seem to come second are read as they
// are, with a warning. Without `labels` the set has none.
absl::StatusOr<Dataset> ReadNpy(ByteStream& images, ByteStream* labels, MapData map = MapData::kAuto);

// The same arrays of both sets in one archive (numpy.savez, numpy.savez_compressed) under the keys train_images,
// train_labels, test_images and test_labels, or Keras' x_train, y_train, x_test and y_test. A test set that is not
// there has no samples. NotFound lists the keys that are there. `for_prediction`: as DatasetOptions has it.
absl::StatusOr<TrainAndTest> ReadNpz(const std::string& path, bool for_prediction = false);

struct TableFiles {
  std::string train, test;  // paths; each file is plain or gzipped. Without a path the test set has no samples.
  std::string label;        // ReadCsv: the label column's name, or its number from 1 on
  bool numbers = false;     // labels are numbers, one a sample, and not classes
  int64_t columns_min = 0;  // ReadLibsvm; with may_lack_labels the columns of the model, 0: images
  // For a prediction, of `train` alone: samples may have no labels. Then all of them are without (Dataset::has_labels).
  bool may_lack_labels = false;
  bool labels_may_be_rare = false;  // as with may_lack_labels: TableLabelOptions::may_be_rare
  int64_t bytes_max = kDatasetBytesMax;
};

// CSV (worker/data/files/csv_rows.h): a column of labels, and columns of numbers, which become float32. A sample is an
// image of one pixel with a channel for each column of numbers. The first line is a header if a cell of it is text;
// both files have the same header, or none. Without `label` the column is the only one that is called label, target,
// class or y. A name counts before a number. With may_lack_labels a file is without labels if no column has the label's
// name, and there are columns_min columns.
//
// Labels are numbered over both sets together (worker/data/table_labels.h). DataLoss names file, line and column: rows
// of different lengths, an empty line before a row, a cell that is no finite float32, more bytes or samples than the
// limits. InvalidArgument: no such label column, or a column that seems to have numbers where classes are wanted.
absl::StatusOr<TrainAndTest> ReadCsv(const TableFiles& files);

// Lines of libsvm: a label, then pairs INDEX:VALUE with rising indices from 1 to kColumnsMax. Values that are not there
// are 0, and a sample has as many columns as the largest index of both sets. A comment begins with #. Labels, samples
// and errors are as those of ReadCsv; `qid:` and lists of labels are refused. With may_lack_labels each line may begin
// with its first pair.
absl::StatusOr<TrainAndTest> ReadLibsvm(const TableFiles& files);

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
