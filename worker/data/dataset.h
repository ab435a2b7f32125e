// Images and labels in memory, as uint8, as the file had them.
#ifndef STARRING_WORKER_DATA_DATASET_H_
#define STARRING_WORKER_DATA_DATASET_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace starring {

struct Dataset {
  int64_t count = 0, height = 0, width = 0, channels = 0;
  int64_t classes = 0;
  std::vector<uint8_t> images;  // (count, height, width, channels): CIFAR's planes are interleaved when read
  std::vector<uint8_t> labels;  // (count), below `classes`
  int64_t image_bytes() const { return height * width * channels; }
};

struct TrainAndTest {
  Dataset train;
  Dataset test;
};

// `name`: mnist, fashion-mnist, cifar10 or synthetic. `data_dir` may be empty: fashion-mnist is then looked for where
// Debian's package puts it. Finds plain and gzipped files; CIFAR-10 with any number of data_batch_*.bin[.gz]. NotFound
// says which files were looked for, where, and how to get them; DataLoss names file, expected and found.
struct DatasetOptions {
  std::string name;
  std::string data_dir;
  int64_t synthetic_train_count = 60000;  // synthetic only; size of an image and number of classes below
  int64_t synthetic_test_count = 10000;
  int64_t synthetic_height = 28, synthetic_width = 28, synthetic_channels = 1, synthetic_classes = 10;
  uint64_t seed = 0;  // synthetic
};
absl::StatusOr<TrainAndTest> LoadDataset(const DatasetOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_DATASET_H_
