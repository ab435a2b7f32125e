#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/arithmetic/philox.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/checkpoint/crc32c.h"
#include "worker/data/dataset_readers.h"
#include "worker/data/files/data_memory.h"

namespace starring {
namespace {

// Streams of random numbers. Training and test images differ because their noise comes from different streams.
enum Stream : uint32_t { kPatterns = 0, kTrainNoise = 1, kTestNoise = 2 };

constexpr int64_t kBlockBytes = 16;

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("synthetic %s is %d, expected 1 to %d", field, value, max));
}

absl::Status CheckOptions(const DatasetOptions& options) {
  RETURN_IF_ERROR(CheckRange("height", options.synthetic_height, kImageSideMax));
  RETURN_IF_ERROR(CheckRange("width", options.synthetic_width, kImageSideMax));
  RETURN_IF_ERROR(CheckRange("channels", options.synthetic_channels, kImageChannelsMax));
  RETURN_IF_ERROR(CheckRange("classes", options.synthetic_classes, 256));
  // The sides are in range by now, so their product cannot overflow.
  const int64_t image_bytes = options.synthetic_height * options.synthetic_width * options.synthetic_channels;
  const int64_t count_max = std::min(kDatasetBytesMax / image_bytes, kDatasetImagesMax);
  RETURN_IF_ERROR(CheckRange("train_count", options.synthetic_train_count, count_max));
  RETURN_IF_ERROR(CheckRange("test_count", options.synthetic_test_count, count_max));
  return CheckDataFits("--dataset=synthetic",
                       (options.synthetic_train_count + options.synthetic_test_count) * image_bytes);
}

// `count` pictures of `picture_bytes` random bytes each, every picture from blocks of its own.
std::vector<uint8_t> RandomPictures(uint64_t seed, Stream stream, int64_t count, int64_t picture_bytes) {
  const RandomKey key{.seed = seed, .purpose = RandomPurpose::kSynthetic, .stream = stream};
  // Each picture begins with a new block, so that a larger set begins with the pictures of a smaller one.
  const int64_t blocks = (picture_bytes + kBlockBytes - 1) / kBlockBytes;
  std::vector<uint8_t> bytes(static_cast<size_t>(count * picture_bytes));
  for (int64_t picture = 0; picture < count; ++picture) {
    uint8_t* out = bytes.data() + picture * picture_bytes;
    for (int64_t b = 0; b < picture_bytes; b += kBlockBytes) {
      const PhiloxWords words = key.At(static_cast<uint64_t>(picture * blocks + b / kBlockBytes));
      const int64_t end = std::min(kBlockBytes, picture_bytes - b);
      for (int64_t i = 0; i < end; ++i) out[b + i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
    }
  }
  return bytes;
}

Dataset MakeSet(const DatasetOptions& options, const std::vector<uint8_t>& patterns, Stream stream, int64_t count) {
  Dataset set;
  set.count = count;
  set.height = options.synthetic_height;
  set.width = options.synthetic_width;
  set.channels = options.synthetic_channels;
  set.classes = options.synthetic_classes;
  set.images = RandomPictures(options.seed, stream, count, set.image_bytes());
  set.labels.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    // The classes take turns, so the numbers of their images differ by one at most.
    const int64_t label = i % set.classes;
    set.labels[static_cast<size_t>(i)] = static_cast<uint16_t>(label);
    const uint8_t* pattern = patterns.data() + label * set.image_bytes();
    uint8_t* image = set.images.data() + i * set.image_bytes();
    // An image is one quarter of its class's pattern and three quarters of noise, so that a network can learn the
    // class.
    for (int64_t b = 0; b < set.image_bytes(); ++b) image[b] = static_cast<uint8_t>((pattern[b] + 3 * image[b]) / 4);
    // The checksum is extended while the image is in the cache. In the end it is that of the whole array.
    set.images_crc32c = ExtendCrc32c(set.images_crc32c, std::as_bytes(std::span(image, set.image_bytes())));
  }
  const std::vector<uint8_t> bytes(set.labels.begin(), set.labels.end());
  set.labels_crc32c = ExtendCrc32c(0, std::as_bytes(std::span(bytes)));
  return set;
}

}  // namespace

absl::StatusOr<TrainAndTest> MakeSynthetic(const DatasetOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  const int64_t image_bytes = options.synthetic_height * options.synthetic_width * options.synthetic_channels;
  const auto patterns = RandomPictures(options.seed, kPatterns, options.synthetic_classes, image_bytes);
  return TrainAndTest{.train = MakeSet(options, patterns, kTrainNoise, options.synthetic_train_count),
                      .test = MakeSet(options, patterns, kTestNoise, options.synthetic_test_count)};
}

}  // namespace starring
