#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/checkpoint/crc32c.h"
#include "common/host/log.h"
#include "worker/data/dataset_readers.h"
#include "worker/data/files/data_memory.h"
#include "worker/data/files/npy_array.h"
#include "worker/data/files/sample_layout.h"
#include "worker/data/files/zip_file.h"
#include "worker/data/mapped_samples.h"

namespace starring {
namespace {

// The size is a multiple of every element's, so a piece ends between elements.
constexpr int64_t kPieceBytes = 256 << 10;  // fits the second-level cache
constexpr int64_t kLabelMax = 65535;
constexpr size_t kNamesShown = 10;

std::string ShapeText(const NpyArray& array) { return absl::StrCat("(", absl::StrJoin(array.shape, ", "), ")"); }

// Calls take(piece, index of its first element) for the elements that follow the header, whole elements at a time, and
// makes sure that nothing follows them.
template <class Take>
absl::Status ForEachPiece(ByteStream& stream, const NpyArray& array, Take take) {
  std::vector<uint8_t> buffer(kPieceBytes);
  const int64_t bytes = array.element_count() * array.element_bytes;
  for (int64_t read = 0; read < bytes;) {
    const auto piece = std::span(buffer).first(static_cast<size_t>(std::min(kPieceBytes, bytes - read)));
    ASSIGN_OR_RETURN(const int64_t piece_bytes, stream.Read(piece));
    if (piece_bytes < std::ssize(piece)) {
      return absl::DataLossError(absl::StrCat(stream.path(), " is truncated: expected ", bytes,
                                              " bytes after the header, found ", read + piece_bytes,
                                              ": copy or save it again"));
    }
    RETURN_IF_ERROR(take(std::span<const uint8_t>(piece), read / array.element_bytes));
    read += piece_bytes;
  }
  // The read also checks a compressed file's checksum, which comes after the data.
  uint8_t extra = 0;
  ASSIGN_OR_RETURN(const int64_t extra_bytes, stream.Read(std::span(&extra, 1)));
  if (extra_bytes == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(stream.path(), " is too long: expected ", bytes,
                                          " bytes after the header, found more: save it again"));
}

// The element at `bytes`, before it is rounded to float32.
double Number(const NpyArray& array, const uint8_t* bytes) {
  const auto as = [bytes]<class T>(T value) {
    std::memcpy(&value, bytes, sizeof value);
    return value;
  };
  if (array.element_bytes == 2) return FromHalf(as(uint16_t{}));
  return array.element_bytes == 4 ? as(float{}) : as(double{});
}

// How the samples lie in the array.
absl::Status SetShape(const ByteStream& stream, const NpyArray& array, Dataset& dataset) {
  const std::vector<int64_t>& shape = array.shape;
  if (shape.size() < 2 || shape.size() > 4) {
    return absl::DataLossError(
        absl::StrCat(stream.path(), " has the shape ", ShapeText(array),
                     ", expected (samples, height, width), (samples, height, width, channels) or (samples, columns)"));
  }
  dataset.count = shape[0];
  dataset.height = shape.size() > 2 ? shape[1] : 1;
  dataset.width = shape.size() > 2 ? shape[2] : 1;
  dataset.channels = shape.size() == 2 ? shape[1] : shape.size() == 3 ? 1 : shape[3];
  const int64_t channels_max = shape.size() == 2 ? kColumnsMax : kImageChannelsMax;
  if (dataset.height > kImageSideMax || dataset.width > kImageSideMax || dataset.channels > channels_max) {
    return absl::DataLossError(
        absl::StrFormat("%s has the shape %s, expected sides of 1 to %d, and 1 to %d channels, or 1 to %d columns: if "
                        "the channels come "
                        "second, save numpy.moveaxis(images, 1, -1)",
                        stream.path(), ShapeText(array), kImageSideMax, kImageChannelsMax, kColumnsMax));
  }
  const auto may_be_channels = [](int64_t size) { return size == 1 || size == 3 || size == 4; };
  if (shape.size() == 4 && may_be_channels(shape[1]) && !may_be_channels(shape[3])) {
    Log(absl::StrCat(stream.path(), " has the shape ", ShapeText(array), ", read as ", shape[3],
                     " channels: the channels come last; if they come second, save numpy.moveaxis(images, 1, -1)"),
        LogLevel::kWarning);
  }
  return absl::OkStatus();
}

// Writes the numbers of `piece`, whose first is the set's number `first`, to the beginning of `out` as float32. A
// sample has `sample_values` of them, each called `name`.
absl::Status TakeNumbers(const ByteStream& stream, const NpyArray& array, std::span<const uint8_t> piece, int64_t first,
                         absl::string_view name, int64_t sample_values, uint8_t* out) {
  for (int64_t i = 0; i < std::ssize(piece) / array.element_bytes; ++i) {
    const double number = Number(array, piece.data() + i * array.element_bytes);
    // The check is of the rounded number: a float64 beyond 3.4e38 is finite before and infinite after.
    const auto rounded = static_cast<float>(number);
    if (!std::isfinite(rounded)) {
      return absl::DataLossError(absl::StrFormat(
          "%s: %s %d of sample %d is %g, expected a finite float32: replace it, scale the column, or leave "
          "the sample out",
          stream.path(), name, (first + i) % sample_values, (first + i) / sample_values, number));
    }
    std::memcpy(out + i * static_cast<int64_t>(sizeof rounded), &rounded, sizeof rounded);
  }
  return absl::OkStatus();
}

SampleLayout LayoutOf(const NpyArray& array, const Dataset& dataset) {
  const ValueOrder order = array.kind != 'f' || array.element_bytes == 4 ? ValueOrder::kAsIs
                           : array.element_bytes == 2                    ? ValueOrder::kHalf
                                                                         : ValueOrder::kDouble;
  return {.order = order,
          .height = dataset.height,
          .width = dataset.width,
          .channels = dataset.channels,
          .value_bytes = dataset.value_bytes()};
}

// Pixels or numbers.
absl::Status ReadValues(ByteStream& stream, MapData map, Dataset& dataset) {
  ASSIGN_OR_RETURN(const NpyArray array, ReadNpyHeader(stream));
  const bool are_pixels = array.kind == 'u' && array.element_bytes == 1;
  if (!are_pixels && array.kind != 'f') {
    return absl::DataLossError(absl::StrCat(
        stream.path(), " has elements of type ", array.type(),
        ", expected uint8 for pixels, or float16, float32 or float64: save array.astype(numpy.float32) of other "
        "numbers"));
  }
  dataset.type = are_pixels ? FieldType::kPixels : FieldType::kNumbers;
  RETURN_IF_ERROR(SetShape(stream, array, dataset));
  // The header promises fewer elements than the file has bytes, so the product does not overflow.
  const int64_t bytes = array.element_count() * dataset.value_bytes();
  if (dataset.count <= kDatasetImagesMax) {
    // The mapping comes before the check of the size: mapped samples take no memory of the process.
    ASSIGN_OR_RETURN(dataset.mapped, MapSamples(stream, LayoutOf(array, dataset), dataset.count, map));
  }
  if (dataset.count > kDatasetImagesMax || (dataset.mapped == nullptr && bytes > kDatasetBytesMax)) {
    return absl::DataLossError(absl::StrFormat("%s holds %d samples, %d bytes, the limits are %d and %d", stream.path(),
                                               dataset.count, bytes, kDatasetImagesMax, kDatasetBytesMax));
  }
  if (dataset.mapped == nullptr) {
    RETURN_IF_ERROR(CheckDataFits(stream.path(), bytes));
    dataset.images.resize(static_cast<size_t>(bytes));
  }
  // Mapped values are read here for their checksum, and to refuse those that are not finite.
  std::vector<uint8_t> scratch(dataset.mapped == nullptr ? 0 : kPieceBytes * dataset.value_bytes());
  return ForEachPiece(stream, array, [&](std::span<const uint8_t> piece, int64_t first) -> absl::Status {
    const int64_t elements = std::ssize(piece) / array.element_bytes;
    const auto taken = dataset.mapped == nullptr ? std::span(dataset.images).subspan(first * dataset.value_bytes())
                                                 : std::span(scratch);
    if (are_pixels) {
      std::ranges::copy(piece, taken.begin());
    } else {
      RETURN_IF_ERROR(TakeNumbers(stream, array, piece, first, "value", dataset.image_values(), taken.data()));
    }
    dataset.images_crc32c =
        ExtendCrc32c(dataset.images_crc32c, std::as_bytes(taken.first(elements * dataset.value_bytes())));
    return absl::OkStatus();
  });
}

// The element at `bytes`, little-endian; what 63 bits do not hold is -1 or below.
int64_t Integer(const NpyArray& array, const uint8_t* bytes) {
  uint64_t value = 0;
  for (int i = array.element_bytes; i-- > 0;) value = value << 8 | bytes[i];
  // The shift up and down again repeats the sign bit in the unused upper bits.
  const int unused = 64 - 8 * array.element_bytes;
  if (array.kind == 'i') return static_cast<int64_t>(value << unused) >> unused;
  return static_cast<int64_t>(value);
}

std::string ShownLabel(const NpyArray& array, int64_t label) {
  return array.kind == 'u' ? absl::StrCat(static_cast<uint64_t>(label)) : absl::StrCat(label);
}

absl::Status ReadClasses(ByteStream& stream, const NpyArray& array, Dataset& dataset) {
  RETURN_IF_ERROR(CheckDataFits(stream.path(), dataset.count * 2));
  dataset.labels.resize(static_cast<size_t>(dataset.count));
  RETURN_IF_ERROR(ForEachPiece(stream, array, [&](std::span<const uint8_t> piece, int64_t first) -> absl::Status {
    const int64_t count = std::ssize(piece) / array.element_bytes;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t label = Integer(array, piece.data() + i * array.element_bytes);
      if (label < 0 || label > kLabelMax) {
        return absl::DataLossError(absl::StrCat(stream.path(), ": label of sample ", first + i, " is ",
                                                ShownLabel(array, label), ", expected a class from 0 to ", kLabelMax,
                                                ", or numbers as float32"));
      }
      dataset.labels[static_cast<size_t>(first + i)] = static_cast<uint16_t>(label);
    }
    return absl::OkStatus();
  }));
  dataset.labels_crc32c = ExtendCrc32c(0, std::as_bytes(std::span(dataset.labels)));
  dataset.classes = 1 + int64_t{*std::ranges::max_element(dataset.labels)};
  return absl::OkStatus();
}

// Numbers or bits.
absl::Status ReadTargets(ByteStream& stream, const NpyArray& array, Dataset& dataset) {
  dataset.target = array.kind == 'f' ? TargetType::kNumbers : TargetType::kBits;
  dataset.target_values = array.shape.size() == 2 ? array.shape[1] : 1;
  // The header promises fewer elements than the file has bytes, so the product does not overflow.
  const int64_t bytes = array.element_count() * static_cast<int64_t>(sizeof(float));
  if (dataset.target_values > kColumnsMax || bytes > kDatasetBytesMax) {
    return absl::DataLossError(absl::StrCat(stream.path(), " has the shape ", ShapeText(array), ", expected at most ",
                                            kColumnsMax, " values of a sample, and ", kDatasetBytesMax,
                                            " bytes of float32"));
  }
  RETURN_IF_ERROR(CheckDataFits(stream.path(), bytes));
  dataset.targets.resize(static_cast<size_t>(array.element_count()));
  RETURN_IF_ERROR(ForEachPiece(stream, array, [&](std::span<const uint8_t> piece, int64_t first) -> absl::Status {
    if (dataset.target == TargetType::kNumbers) {
      return TakeNumbers(stream, array, piece, first, "label", dataset.target_values,
                         reinterpret_cast<uint8_t*>(dataset.targets.data() + first));
    }
    for (size_t i = 0; i < piece.size(); ++i) {
      if (piece[i] > 1) {
        const int64_t element = first + static_cast<int64_t>(i);
        return absl::DataLossError(absl::StrCat(
            stream.path(), ": label ", element % dataset.target_values, " of sample ", element / dataset.target_values,
            " is ", piece[i], ", expected a bit, 0 or 1: save classes as one integer a sample, or numbers as float32"));
      }
      dataset.targets[static_cast<size_t>(first) + i] = piece[i];
    }
    return absl::OkStatus();
  }));
  dataset.labels_crc32c = ExtendCrc32c(0, std::as_bytes(std::span(dataset.targets)));
  return absl::OkStatus();
}

absl::Status ReadLabels(ByteStream& stream, Dataset& dataset) {
  ASSIGN_OR_RETURN(const NpyArray array, ReadNpyHeader(stream));
  const bool are_integers = array.kind == 'u' || array.kind == 'i';
  if (array.shape.empty() || array.shape.size() > 2 || array.shape[0] != dataset.count) {
    return absl::DataLossError(absl::StrCat(stream.path(), " has the shape ", ShapeText(array), ", expected (",
                                            dataset.count, "), a label for each sample, or (", dataset.count,
                                            ", values)"));
  }
  // A column of labels is as good as a row of them.
  if (are_integers && (array.shape.size() == 1 || array.shape[1] == 1)) return ReadClasses(stream, array, dataset);
  const bool are_bytes = array.element_bytes == 1 && array.kind != 'i';
  if (array.kind == 'f' || are_bytes) return ReadTargets(stream, array, dataset);
  return absl::DataLossError(absl::StrCat(
      stream.path(), " has the shape ", ShapeText(array), " and elements of type ", array.type(),
      ", expected one integer a sample, a class; numbers as float16, float32 or float64; or bits as bool or uint8"));
}

struct Names {
  absl::string_view images, labels;
};

// The member of an archive that has `name`; numpy.savez adds .npy to a key.
absl::StatusOr<std::unique_ptr<ByteStream>> OpenArray(const ZipFile& zip, absl::string_view name) {
  const std::string with_ending = absl::StrCat(name, ".npy");
  return zip.OpenMember(zip.Has(with_ending) ? with_ending : std::string(name));
}

bool Has(const ZipFile& zip, absl::string_view name) { return zip.Has(name) || zip.Has(absl::StrCat(name, ".npy")); }

absl::StatusOr<Dataset> ReadFromZip(const ZipFile& zip, const Names& names, bool needs_labels) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> images, OpenArray(zip, names.images));
  std::unique_ptr<ByteStream> labels;
  if (needs_labels || Has(zip, names.labels)) {
    ASSIGN_OR_RETURN(labels, OpenArray(zip, names.labels));
  }
  return ReadNpy(*images, labels.get());
}

}  // namespace

absl::StatusOr<Dataset> ReadNpy(ByteStream& images, ByteStream* labels, MapData map) {
  Dataset dataset;
  RETURN_IF_ERROR(ReadValues(images, map, dataset));
  if (labels != nullptr) {
    RETURN_IF_ERROR(ReadLabels(*labels, dataset));
    return dataset;
  }
  dataset.has_labels = false;
  dataset.classes = 1;
  dataset.labels.resize(static_cast<size_t>(dataset.count));
  return dataset;
}

absl::StatusOr<TrainAndTest> ReadNpz(const std::string& path, bool for_prediction) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ZipFile> zip, ZipFile::Open(path));
  // Ours, and those of Keras.
  constexpr std::array<std::pair<Names, Names>, 2> kKeys = {{
      {{"train_images", "train_labels"}, {"test_images", "test_labels"}},
      {{"x_train", "y_train"}, {"x_test", "y_test"}},
  }};
  for (const auto& [train, test] : kKeys) {
    TrainAndTest sets;
    if (for_prediction && Has(*zip, test.images)) {
      ASSIGN_OR_RETURN(sets.test, ReadFromZip(*zip, test, /*needs_labels=*/false));
      return sets;
    }
    if (!Has(*zip, train.images) || !Has(*zip, train.labels)) continue;
    ASSIGN_OR_RETURN(sets.train, ReadFromZip(*zip, train, /*needs_labels=*/true));
    // One without the other is not found, and named.
    if (Has(*zip, test.images) || Has(*zip, test.labels)) {
      ASSIGN_OR_RETURN(sets.test, ReadFromZip(*zip, test, /*needs_labels=*/true));
    }
    return sets;
  }
  std::vector<std::string> names = zip->names();
  names.resize(std::min(names.size(), kNamesShown));
  for (std::string& name : names) name = absl::CHexEscape(name);
  return absl::NotFoundError(absl::StrCat(path, " has the arrays ", absl::StrJoin(names, ", "),
                                          ": expected train_images and train_labels, or x_train and y_train, and the "
                                          "same of a test set if there is one"));
}

}  // namespace starring
