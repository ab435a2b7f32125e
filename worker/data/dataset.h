// A data set: samples as they were in the files, and a target for each. A sample has pixels or numbers.
//
// Thread safety: a Dataset is not changed after it was read; functions may be called by any thread.
#ifndef STARRING_WORKER_DATA_DATASET_H_
#define STARRING_WORKER_DATA_DATASET_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/mapped_samples.h"

namespace starring {

// The type of a sample's values. kPixels: uint8. kNumbers: float32, finite.
enum class FieldType { kPixels, kNumbers };

// The answer that a model has to give for a sample. kClass: one of some classes, by a label. kNumbers: finite float32.
// kBits: float32 that are 0 or 1. A model has as many outputs as there are classes, or numbers or bits of a sample.
enum class TargetType { kClass, kNumbers, kBits };

// The columns of a table are the channels of an image of one pixel.
struct Dataset {
  int64_t count = 0, height = 0, width = 0, channels = 0;
  int64_t classes = 0;  // a test set has those of its training set; 0 without kClass
  FieldType type = FieldType::kPixels;
  TargetType target = TargetType::kClass;
  int64_t target_values = 0;  // of a sample, with kNumbers and kBits
  // The bytes of the values, (count, height, width, channels), in this machine's order: in memory, or mapped, when
  // `images` is empty.
  std::vector<uint8_t> images;
  std::shared_ptr<const MappedSamples> mapped;
  std::vector<uint16_t> labels;  // kClass: (count), below `classes`
  std::vector<float> targets;    // kNumbers, kBits: (count, target_values)
  bool has_labels = true;        // else all labels are 0: DatasetOptions::for_prediction
  // Checksums of values and of labels or targets, computed while they were read. Labels that are bytes in their file
  // count as bytes.
  uint32_t images_crc32c = 0;
  uint32_t labels_crc32c = 0;

  int64_t value_bytes() const { return type == FieldType::kPixels ? 1 : static_cast<int64_t>(sizeof(float)); }
  // In one sample.
  int64_t image_values() const { return height * width * channels; }
  int64_t image_bytes() const { return image_values() * value_bytes(); }
  // The values of sample `i`. `scratch` has room for them, and is used if the set is mapped.
  const uint8_t* Image(int64_t i, uint8_t* scratch) const {
    return mapped == nullptr ? images.data() + i * image_bytes() : mapped->Sample(i, scratch);
  }
  // Where they are stored, and in how many bytes.
  const uint8_t* StoredImage(int64_t i) const {
    return mapped == nullptr ? images.data() + i * image_bytes() : mapped->Stored(i);
  }
  int64_t stored_image_bytes() const { return mapped == nullptr ? image_bytes() : mapped->layout().stored_bytes(); }
  // Calls take(values, samples) for the samples [begin, end), which are in `values` one after the other, a `block` or
  // fewer at a time.
  template <class F>
  void ForEachBlock(int64_t begin, int64_t end, int64_t block, F take) const {
    std::vector<uint8_t> read(mapped == nullptr ? 0
                                                : static_cast<size_t>(std::min(block, end - begin) * image_bytes()));
    for (int64_t first = begin; first < end; first += block) {
      const int64_t samples = std::min(block, end - first);
      if (mapped != nullptr) mapped->Read(first, samples, read.data());
      const uint8_t* const values = mapped == nullptr ? images.data() + first * image_bytes() : read.data();
      take(std::span(values, static_cast<size_t>(samples * image_bytes())), samples);
    }
  }
  // A model for these data has so many.
  int64_t outputs() const { return target == TargetType::kClass ? classes : target_values; }
  // A sample's label or targets in a batch, as int32 or float32.
  int64_t batch_target_bytes() const { return 4 * (target == TargetType::kClass ? 1 : target_values); }
};

// The changes to a training image. kCropFlip: zero-pad by 4, random crop to size, flip left-right with probability 1/2.
enum class Augment { kNone, kCropFlip };

// Whether a worker with a GPU copies its data set there. kAuto: if it takes at most half of the free memory.
enum class DataOnGpu { kOff, kAuto, kOn };

// How the loader treats values. kChannels: they get mean 0 and deviation 1, by channel. kNone: numbers stay, pixels are
// divided by 255.
enum class Normalize { kChannels, kNone };

struct TrainAndTest {
  Dataset train;
  Dataset test;
  // By class, its label in the files; empty where those are the classes' numbers.
  std::vector<std::string> class_names;
};

// CIFAR-100 has two labels for each image: one of 100 classes, and the one of 20 to which that class belongs.
enum class Cifar100Labels { kFine, kCoarse };

struct DatasetOptions {
  std::string name;  // --dataset
  std::string data_dir = "";
  Cifar100Labels cifar100_labels = Cifar100Labels::kFine;
  std::string csv_label = "";  // the column of a table with the labels: its name, or its number from 1 on
  // The targets that the model's loss needs; without it, the labels of a table are classes. Two classes serve as one
  // bit, which is 1 for the second of them.
  std::optional<TargetType> target = std::nullopt;
  // Above 0: the data has no test set, and this part of its samples becomes one. They are the first floor(count *
  // test_fraction) of RandomOrder(count, {split_seed, kSplit}) (worker/data/sampler.h), and keep their order, as those
  // of the training set do. split_seed is not the seed of the training: another run must not train on what this one
  // tests.
  double test_fraction = 0;
  uint64_t split_seed = 1;
  // Only the test set is wanted. If it is there, npy's other files and other tables are not read, and the training
  // set has no samples. The test set may lack labels (of a table: TableFiles::may_lack_labels). A table in one file is
  // the test set.
  bool for_prediction = false;
  MapData map_data = MapData::kAuto;
  int64_t columns_min = 0;  // libsvm: a sample has so many columns at least
  // Only for synthetic.
  int64_t synthetic_train_count = 60000;
  int64_t synthetic_test_count = 10000;
  int64_t synthetic_height = 28, synthetic_width = 28, synthetic_channels = 1, synthetic_classes = 10;
  uint64_t seed = 0;
};

// Looks for the files in data_dir, in data_dir's folder with the name of the data set (deploy/get_data.sh makes it),
// and in the folder that torchvision or the data set's own archive makes: MNIST/raw, FashionMNIST/raw, KMNIST/raw,
// EMNIST/raw, cifar-10-batches-bin, cifar-100-binary. EMNIST's images, which its files have lying on their side, are
// turned upright. Without a data_dir, fashion-mnist is read from where Debian's package dataset-fashion-mnist
// installs it; synthetic needs no files. A plain file is preferred to a gzipped one. CIFAR-10's training set is every
// data_batch_N.bin that exists, in the order of N.
//
// The classes are as many as the largest label of both sets needs, but no fewer than the data set is known to have: a
// part of it without the last class trains the same model.
//
// InvalidArgument for an unknown name, an impossible synthetic size, a test_fraction of data that has a test set, or
// one that leaves a set empty, or other targets than DatasetOptions::target; NotFound says which files were looked for,
// where, and how to get them, or that data_dir does not exist; DataLoss names the file, what was expected and what was
// found.
absl::StatusOr<TrainAndTest> LoadDataset(const DatasetOptions& options);

// A line for people: class 0 has the label "no", class 1 "yes". It mentions the loss of numbers if the labels may be
// values. Empty without names.
std::string DescribeClassNames(const std::vector<std::string>& names);

// Counts, shapes and checksums of both sets, for JobSpec::agreed_flags: all ranks of a job must have read the same
// data.
std::vector<std::pair<std::string, std::string>> DatasetFacts(const TrainAndTest& sets);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_DATASET_H_
