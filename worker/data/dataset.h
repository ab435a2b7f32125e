// A data set in memory: images and labels as uint8, as they were in the files.
//
// Thread safety: a Dataset is not changed after it was read; functions may be called by any thread.
#ifndef STARRING_WORKER_DATA_DATASET_H_
#define STARRING_WORKER_DATA_DATASET_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace starring {

struct Dataset {
  int64_t count = 0, height = 0, width = 0, channels = 0;
  int64_t classes = 0;
  std::vector<uint8_t> images;  // (count, height, width, channels); the reader interleaves CIFAR's planes
  std::vector<uint8_t> labels;  // (count), below `classes`
  uint32_t images_crc32c = 0;   // checksums of the two arrays above, computed while they were read
  uint32_t labels_crc32c = 0;
  int64_t image_bytes() const { return height * width * channels; }
};

// The changes to a training image. kCropFlip: zero-pad by 4, random crop to size, flip left-right with probability 1/2.
enum class Augment { kNone, kCropFlip };

// Whether a worker with a GPU copies its data set there. kAuto: if it takes at most half of the free memory.
enum class DataOnGpu { kOff, kAuto, kOn };

struct TrainAndTest {
  Dataset train;
  Dataset test;
};

struct DatasetOptions {
  std::string name;  // mnist, fashion-mnist, cifar10 or synthetic
  std::string data_dir = "";
  // Only for synthetic.
  int64_t synthetic_train_count = 60000;
  int64_t synthetic_test_count = 10000;
  int64_t synthetic_height = 28, synthetic_width = 28, synthetic_channels = 1, synthetic_classes = 10;
  uint64_t seed = 0;
};

// Looks for the files in data_dir, in data_dir's folder with the name of the data set (deploy/get_data.sh makes it),
// and in the folder that torchvision or the data set's own archive makes: MNIST/raw, FashionMNIST/raw,
// cifar-10-batches-bin. Without a data_dir, fashion-mnist is read from where Debian's package dataset-fashion-mnist
// installs it; synthetic needs no files. A plain file is preferred to a gzipped one. CIFAR-10's training set is every
// data_batch_N.bin that exists, in the order of N.
//
// InvalidArgument for an unknown name or an impossible synthetic size; NotFound says which files were looked for,
// where, and how to get them; DataLoss names the file, what was expected and what was found.
absl::StatusOr<TrainAndTest> LoadDataset(const DatasetOptions& options);

// Counts, shapes and checksums of both sets, for JobSpec::agreed_flags: all ranks of a job must have read the same
// data.
std::vector<std::pair<std::string, std::string>> DatasetFacts(const TrainAndTest& sets);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_DATASET_H_
