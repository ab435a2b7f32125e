#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/checkpoint/crc32c.h"
#include "worker/data/dataset_readers.h"
#include "worker/data/files/data_memory.h"
#include "worker/data/files/file_kind.h"
#include "worker/data/files/file_stream.h"

namespace starring {
namespace {

constexpr int64_t kSide = 32;
constexpr int64_t kChannels = 3;
constexpr int64_t kPlaneBytes = kSide * kSide;
constexpr int64_t kImageBytes = kPlaneBytes * kChannels;
constexpr int64_t kRecordsAtOnce = 256;

// The kernels want all channels of a pixel together (NHWC); CIFAR's files have one plane for each channel.
void Interleave(const uint8_t* planes, uint8_t* image) {
  const uint8_t* red = planes;
  const uint8_t* green = red + kPlaneBytes;
  const uint8_t* blue = green + kPlaneBytes;
  for (int64_t i = 0; i < kPlaneBytes; ++i) {
    image[3 * i] = red[i];
    image[3 * i + 1] = green[i];
    image[3 * i + 2] = blue[i];
  }
}

int64_t RecordBytes(const CifarFiles& files) { return files.label_bytes + kImageBytes; }

// Interleaves the images and extends the checksums while a piece of the file is in the cache.
void AppendRecords(const CifarFiles& files, std::span<const uint8_t> records, Dataset& dataset) {
  const int64_t record_bytes = RecordBytes(files);
  const size_t count = records.size() / static_cast<size_t>(record_bytes);
  const size_t first_image = dataset.images.size();
  std::vector<uint8_t> labels;
  size_t image = first_image;
  // The arrays grow, because the number of records is known only at the end: a gzipped file does not tell its length.
  dataset.images.resize(image + count * kImageBytes);
  for (size_t i = 0; i < count; ++i, image += kImageBytes) {
    const uint8_t* record = records.data() + static_cast<int64_t>(i) * record_bytes;
    labels.push_back(record[files.label]);
    Interleave(record + files.label_bytes, dataset.images.data() + image);
  }
  dataset.images_crc32c =
      ExtendCrc32c(dataset.images_crc32c, std::as_bytes(std::span(dataset.images).subspan(first_image)));
  dataset.labels_crc32c = ExtendCrc32c(dataset.labels_crc32c, std::as_bytes(std::span(labels)));
  dataset.labels.insert(dataset.labels.end(), labels.begin(), labels.end());
}

absl::Status AppendFile(const CifarFiles& files, const std::string& path, Dataset& dataset) {
  const int64_t record_bytes = RecordBytes(files);
  ASSIGN_OR_RETURN(const std::unique_ptr<FileStream> stream, FileStream::Open(path));
  // For a small file the buffer has room for one record more than the file can have: then the first read is short, and
  // ends the loop.
  std::vector<uint8_t> buffer(std::min(kRecordsAtOnce, stream->size_bytes_max() / record_bytes + 1) * record_bytes);
  int64_t record = 0;
  absl::Status other_kind;  // names what the file is instead, if its beginning shows that
  for (int64_t bytes = std::ssize(buffer); bytes == std::ssize(buffer);) {
    ASSIGN_OR_RETURN(bytes, stream->Read(buffer));
    if (record == 0) other_kind = RefuseOtherKind(path, std::span(buffer).first(static_cast<size_t>(bytes)));
    if (bytes % record_bytes != 0) {
      // Only now: whole records may begin as another kind of file does.
      RETURN_IF_ERROR(other_kind);
      return absl::DataLossError(absl::StrFormat(
          "%s is truncated: expected a whole number of records of %d bytes, found %d records and %d bytes: copy or "
          "download it again",
          path, record_bytes, record + bytes / record_bytes, bytes % record_bytes));
    }
    const int64_t count = bytes / record_bytes;
    // Checked before the images grow: a gzipped file of some KiB can hold gigabytes of legal records.
    if (std::ssize(dataset.images) + count * kImageBytes > files.bytes_max) {
      return absl::DataLossError(absl::StrFormat(
          "%s: its images and those before it are more than the limit of %d bytes", path, files.bytes_max));
    }
    // A vector that grows has the old memory and twice as much at once.
    if (const int64_t needed = std::ssize(dataset.images) + count * kImageBytes;
        needed > static_cast<int64_t>(dataset.images.capacity())) {
      RETURN_IF_ERROR(CheckDataFits(path, std::max(needed, 2 * std::ssize(dataset.images))));
    }
    const auto records = std::span(buffer).first(static_cast<size_t>(bytes));
    AppendRecords(files, records, dataset);
    record += count;
  }
  // The check for a whole number of records does not refuse an empty file.
  if (record == 0) {
    return absl::DataLossError(
        absl::StrFormat("%s is empty: expected at least one record of %d bytes", path, record_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Dataset> ReadCifar(const CifarFiles& files) {
  CHECK(!files.paths.empty());
  CHECK_LT(files.label, files.label_bytes);
  Dataset dataset;
  dataset.height = kSide;
  dataset.width = kSide;
  dataset.channels = kChannels;
  for (const std::string& path : files.paths) {
    RETURN_IF_ERROR(AppendFile(files, path, dataset));
  }
  dataset.count = std::ssize(dataset.labels);
  dataset.classes = 1 + int64_t{*std::ranges::max_element(dataset.labels)};
  return dataset;
}

}  // namespace starring
