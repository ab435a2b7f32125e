#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/checkpoint/crc32c.h"
#include "worker/data/dataset_readers.h"
#include "worker/data/files/data_memory.h"
#include "worker/data/files/file_kind.h"
#include "worker/data/files/file_stream.h"
#include "worker/data/files/sample_layout.h"
#include "worker/data/mapped_samples.h"

namespace starring {
namespace {

constexpr int64_t kSide = 32;
constexpr int64_t kChannels = 3;
constexpr int64_t kImageBytes = kSide * kSide * kChannels;
constexpr int64_t kRecordsAtOnce = 256;

SampleLayout LayoutOf(const CifarFiles& files) {
  return {.order = ValueOrder::kPlanes,
          .height = kSide,
          .width = kSide,
          .channels = kChannels,
          .skipped_bytes = files.label_bytes};
}

int64_t RecordBytes(const CifarFiles& files) { return LayoutOf(files).record_bytes(); }

// Interleaves the images and extends the checksums while a piece of the file is in the cache.
void AppendRecords(const CifarFiles& files, std::span<const uint8_t> records, Dataset& dataset) {
  const int64_t record_bytes = RecordBytes(files);
  const size_t count = records.size() / static_cast<size_t>(record_bytes);
  std::vector<uint8_t> labels, scratch;
  // The arrays grow, because the number of records is known only at the end: a gzipped file does not tell its length.
  std::vector<uint8_t>& images = dataset.mapped == nullptr ? dataset.images : scratch;
  const size_t first_image = images.size();
  images.resize(first_image + count * kImageBytes);
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* record = records.data() + static_cast<int64_t>(i) * record_bytes;
    labels.push_back(record[files.label]);
    DecodeSample(LayoutOf(files), record + files.label_bytes, images.data() + first_image + i * kImageBytes);
  }
  dataset.images_crc32c = ExtendCrc32c(dataset.images_crc32c, std::as_bytes(std::span(images).subspan(first_image)));
  dataset.labels_crc32c = ExtendCrc32c(dataset.labels_crc32c, std::as_bytes(std::span(labels)));
  dataset.labels.insert(dataset.labels.end(), labels.begin(), labels.end());
}

// Whether `count` more images fit.
absl::Status CheckRoom(const CifarFiles& files, const std::string& path, int64_t count, const Dataset& dataset) {
  const int64_t needed = std::ssize(dataset.images) + count * kImageBytes;
  // Checked before the images grow: a gzipped file of some KiB can hold gigabytes of legal records.
  if (needed > files.bytes_max) {
    return absl::DataLossError(absl::StrFormat("%s: its images and those before it are more than the limit of %d bytes",
                                               path, files.bytes_max));
  }
  // A vector that grows has the old memory and twice as much at once.
  if (needed <= static_cast<int64_t>(dataset.images.capacity())) return absl::OkStatus();
  return CheckDataFits(path, std::max(needed, 2 * std::ssize(dataset.images)));
}

// Maps all files. Without samples they are to be read into memory, as where one of them is compressed. With samples the
// records are read from `streams`: a file that was put in the place of a mapped one would have others.
struct MappedFiles {
  std::shared_ptr<const MappedSamples> samples;
  std::vector<std::unique_ptr<FileStream>> streams;
};
absl::StatusOr<MappedFiles> MapFiles(const CifarFiles& files) {
  if (files.map == MapData::kNever) return MappedFiles();
  const SampleLayout layout = LayoutOf(files);
  int64_t bytes = 0;
  for (const std::string& path : files.paths) {
    std::error_code ignored;
    const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path, ignored));
    bytes += ignored ? 0 : file_bytes;
  }
  MappedFiles mapped;
  std::vector<MappedSamples::Part> parts;
  for (const std::string& path : files.paths) {
    ASSIGN_OR_RETURN(std::unique_ptr<FileStream> stream, FileStream::Open(path));
    absl::StatusOr<MappedRest> rest = stream->MapRest();
    if (!rest.ok() && files.map == MapData::kAuto && bytes <= files.bytes_max) return MappedFiles();
    RETURN_IF_ERROR(rest.status());
    if (rest->file == nullptr) return MappedFiles();
    // The division may round down. AppendFile then refuses the file, whose records are not whole.
    const int64_t count = std::ssize(rest->file->bytes()) / layout.record_bytes();
    parts.push_back({.file = rest->file, .offset = 0, .count = count});
    mapped.streams.push_back(std::move(stream));
  }
  mapped.samples = std::make_shared<const MappedSamples>(layout, std::move(parts), MayLeaveMemory(files.map, bytes));
  return mapped;
}

absl::Status AppendFile(const CifarFiles& files, FileStream& stream, Dataset& dataset) {
  const int64_t record_bytes = RecordBytes(files);
  const std::string& path = stream.path();
  // For a small file the buffer has room for one record more than the file can have: then the first read is short, and
  // ends the loop.
  std::vector<uint8_t> buffer(std::min(kRecordsAtOnce, stream.size_bytes_max() / record_bytes + 1) * record_bytes);
  int64_t record = 0;
  absl::Status other_kind;  // names what the file is instead, if its beginning shows that
  for (int64_t bytes = std::ssize(buffer); bytes == std::ssize(buffer);) {
    ASSIGN_OR_RETURN(bytes, stream.Read(buffer));
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
    if (dataset.mapped == nullptr) RETURN_IF_ERROR(CheckRoom(files, path, count, dataset));
    RETURN_IF_ERROR(MakeRoom(path, count, dataset.labels));
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
  ASSIGN_OR_RETURN(const MappedFiles mapped, MapFiles(files));
  dataset.mapped = mapped.samples;
  for (const std::unique_ptr<FileStream>& stream : mapped.streams) {
    if (dataset.mapped != nullptr) RETURN_IF_ERROR(AppendFile(files, *stream, dataset));
  }
  for (const std::string& path : files.paths) {
    if (dataset.mapped != nullptr) break;
    ASSIGN_OR_RETURN(const std::unique_ptr<FileStream> stream, FileStream::Open(path));
    RETURN_IF_ERROR(AppendFile(files, *stream, dataset));
  }
  dataset.count = std::ssize(dataset.labels);
  // There is a label: AppendFile refuses an empty file, and `paths` has one or more.
  dataset.classes = 1 + int64_t{*std::ranges::max_element(dataset.labels)};
  return dataset;
}

}  // namespace starring
