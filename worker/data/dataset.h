// Images and labels in memory, as uint8, as the file had them.
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
  std::vector<uint8_t> images;  // (count, height, width, channels): CIFAR's planes are interleaved when read
  std::vector<uint8_t> labels;  // (count), below `classes`
  uint32_t images_crc32c = 0;   // of the two arrays above, computed while they were read
  uint32_t labels_crc32c = 0;
  int64_t image_bytes() const { return height * width * channels; }
};

// Whether a worker with a GPU copies its data set there; kAuto: where it fits well.
enum class DataOnGpu { kOff, kAuto, kOn };

struct TrainAndTest {
  Dataset train;
  Dataset test;
};

struct DatasetOptions {
  std::string name;  // mnist, fashion-mnist, cifar10 or synthetic
  std::string data_dir = "";
  int64_t synthetic_train_count = 60000;  // synthetic only, like everything below
  int64_t synthetic_test_count = 10000;
  int64_t synthetic_height = 28, synthetic_width = 28, synthetic_channels = 1, synthetic_classes = 10;
  uint64_t seed = 0;
};

// Files are looked for in data_dir, in a folder in it that is named after the data set (deploy/get_data.sh makes it),
// and in the one that torchvision or the data set's own archive makes: MNIST/raw, FashionMNIST/raw,
// cifar-10-batches-bin. An empty data_dir is enough for synthetic, and for fashion-mnist, which is then taken from
// where Debian's package dataset-fashion-mnist puts it; a data_dir that is given is the only place. Plain and gzipped
// files are found, the plain one first; CIFAR-10's training set is every data_batch_N.bin there is, in the order of N.
//
// InvalidArgument for an unknown name or an impossible synthetic size; NotFound says which files were looked for,
// where, and how to get them; DataLoss names file, expected and found.
absl::StatusOr<TrainAndTest> LoadDataset(const DatasetOptions& options);

// What all ranks of a job must have read alike, for JobSpec::agreed_flags: counts, shapes and checksums.
std::vector<std::pair<std::string, std::string>> DatasetFacts(const TrainAndTest& sets);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_DATASET_H_
