#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"
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

constexpr uint32_t kImagesMagic = 0x00000803;  // unsigned byte, 3 dimensions
constexpr uint32_t kLabelsMagic = 0x00000801;  // unsigned byte, 1 dimension
constexpr int64_t kPieceBytes = 256 << 10;     // fits the second-level cache

struct Expected {
  uint32_t magic;
  int dimensions;
  const char* what;  // "images"
  int64_t header_bytes() const { return 4 * (1 + dimensions); }
};

struct IdxFile {
  // Labels have one dimension. The others stay 1, so that the product is the number of bytes for both kinds of files.
  std::array<int64_t, 3> dims{1, 1, 1};
  std::vector<uint8_t> bytes;  // empty if they are mapped
  std::shared_ptr<const MappedSamples> mapped;
  uint32_t crc32c = 0;  // of the bytes
};

absl::Status CheckDims(const FileStream& stream, const Expected& expected, const IdxFile& file) {
  const auto& [count, rows, columns] = file.dims;
  if (count < 1) return absl::DataLossError(absl::StrCat(stream.path(), " says that it holds no ", expected.what));
  if (rows < 1 || columns < 1 || rows > kImageSideMax || columns > kImageSideMax) {
    return absl::DataLossError(absl::StrFormat("%s says that its images have %d x %d pixels, expected 1 to %d a side",
                                               stream.path(), rows, columns, kImageSideMax));
  }
  // At most 2^32 * 2^13 * 2^13, so the product does not overflow.
  const int64_t promised = count * rows * columns;
  // A header of 16 bytes may promise gigabytes; the file's own size bounds what can be true, before any allocation.
  const int64_t possible = stream.size_bytes_max() - expected.header_bytes();
  if (promised > possible) {
    return absl::DataLossError(absl::StrFormat(
        "%s is truncated: expected %d bytes of %s after the header, found %d at most: copy or download it "
        "again",
        stream.path(), promised, expected.what, possible));
  }
  return absl::OkStatus();
}

absl::Status ReadHeader(FileStream& stream, const Expected& expected, IdxFile& file) {
  std::array<uint8_t, 16> header{};
  const int64_t header_bytes = expected.header_bytes();
  ASSIGN_OR_RETURN(const int64_t read, stream.Read(std::span(header).first(static_cast<size_t>(header_bytes))));
  // IDX is big-endian.
  const auto word = [&header](int i) {
    return uint32_t{header[4 * i]} << 24 | uint32_t{header[4 * i + 1]} << 16 | uint32_t{header[4 * i + 2]} << 8 |
           header[4 * i + 3];
  };
  // The magic number is checked first: a file of another kind is often shorter too, and "truncated" would mislead.
  if (read >= 4 && word(0) != expected.magic) {
    RETURN_IF_ERROR(RefuseOtherKind(stream.path(), std::span(header).first(static_cast<size_t>(read))));
    return absl::DataLossError(absl::StrFormat("%s begins with 0x%08x, expected 0x%08x (IDX %s): give the %s file",
                                               stream.path(), word(0), expected.magic, expected.what, expected.what));
  }
  if (read < header_bytes) {
    return absl::DataLossError(
        absl::StrFormat("%s is truncated: expected a header of %d bytes, found %d", stream.path(), header_bytes, read));
  }
  for (int i = 0; i < expected.dimensions; ++i) file.dims[i] = word(1 + i);
  return CheckDims(stream, expected, file);
}

// Where the samples are going to be. Their limits hold for memory.
absl::Status MakeRoom(const FileStream& stream, const Expected& expected, const SampleLayout& layout, MapData map,
                      IdxFile& file) {
  const int64_t count = file.dims[0], bytes = count * layout.sample_bytes();
  ASSIGN_OR_RETURN(file.mapped, MapSamples(stream, layout, count, map));
  if (file.mapped != nullptr) return absl::OkStatus();
  if (bytes > kDatasetBytesMax) {
    return absl::DataLossError(
        absl::StrFormat("%s says that it holds %d bytes of %s, the limit is %d (common/base/limits.h)", stream.path(),
                        bytes, expected.what, kDatasetBytesMax));
  }
  RETURN_IF_ERROR(CheckDataFits(stream.path(), bytes));
  file.bytes.resize(static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status ReadBody(FileStream& stream, const Expected& expected, const SampleLayout& layout, IdxFile& file) {
  const int64_t count = file.dims[0], sample_bytes = layout.sample_bytes();
  // Whole samples, so that each is decoded, and its checksum computed, while it is in the cache.
  const int64_t at_once = std::min(count, std::max<int64_t>(1, kPieceBytes / sample_bytes));
  const bool in_place = file.mapped == nullptr && layout.order == ValueOrder::kAsIs;
  std::vector<uint8_t> stored(in_place ? 0 : static_cast<size_t>(at_once * sample_bytes));
  std::vector<uint8_t> scratch(file.mapped == nullptr ? 0 : stored.size());
  for (int64_t first = 0; first < count; first += at_once) {
    const int64_t samples = std::min(at_once, count - first);
    const auto bytes = static_cast<size_t>(samples * sample_bytes);
    const auto out = file.mapped != nullptr ? std::span(scratch).first(bytes)
                                            : std::span(file.bytes).subspan(first * sample_bytes, bytes);
    const auto in = in_place ? out : std::span(stored).first(bytes);
    ASSIGN_OR_RETURN(const int64_t read, stream.Read(in));
    if (read < std::ssize(in)) {
      return absl::DataLossError(absl::StrFormat(
          "%s is truncated: expected %d bytes of %s after the header, found %d: copy or download it again",
          stream.path(), count * sample_bytes, expected.what, first * sample_bytes + read));
    }
    for (int64_t i = 0; !in_place && i < samples; ++i) {
      DecodeSample(layout, in.data() + i * sample_bytes, out.data() + i * sample_bytes);
    }
    // The checksum is of decoded samples. Gzipped, mapped and plain files of the same images have the same one.
    file.crc32c = ExtendCrc32c(file.crc32c, std::as_bytes(out));
  }
  // One more byte would mean that header and data do not belong together. The read also checks gzip's checksum, which
  // comes after the data.
  uint8_t extra = 0;
  ASSIGN_OR_RETURN(const int64_t extra_bytes, stream.Read(std::span(&extra, 1)));
  if (extra_bytes != 0) {
    return absl::DataLossError(absl::StrFormat("%s is too long: expected %d bytes of %s after the header, found more",
                                               stream.path(), count * sample_bytes, expected.what));
  }
  return absl::OkStatus();
}

// The images of a `transposed` file are turned upright.
absl::StatusOr<IdxFile> ReadFile(const std::string& path, const Expected& expected, MapData map,
                                 bool transposed = false) {
  ASSIGN_OR_RETURN(const std::unique_ptr<FileStream> stream, FileStream::Open(path));
  IdxFile file;
  RETURN_IF_ERROR(ReadHeader(*stream, expected, file));
  if (transposed) std::swap(file.dims[1], file.dims[2]);
  const SampleLayout layout = {.order = transposed ? ValueOrder::kTransposed : ValueOrder::kAsIs,
                               .height = file.dims[1],
                               .width = file.dims[2],
                               .channels = 1};
  RETURN_IF_ERROR(MakeRoom(*stream, expected, layout, map, file));
  RETURN_IF_ERROR(ReadBody(*stream, expected, layout, file));
  return file;
}

}  // namespace

absl::StatusOr<Dataset> ReadIdx(const IdxFiles& files) {
  // The labels are read first: they are small, so a wrong labels file is refused before the images are read.
  ASSIGN_OR_RETURN(IdxFile labels,
                   ReadFile(files.labels, {.magic = kLabelsMagic, .dimensions = 1, .what = "labels"}, MapData::kNever));
  ASSIGN_OR_RETURN(IdxFile images, ReadFile(files.images, {.magic = kImagesMagic, .dimensions = 3, .what = "images"},
                                            files.map, files.transposed));
  if (images.dims[0] != labels.dims[0]) {
    return absl::DataLossError(
        absl::StrFormat("%s holds %d images, %s holds %d labels: expected as many labels as images", files.images,
                        images.dims[0], files.labels, labels.dims[0]));
  }
  Dataset dataset;
  dataset.count = images.dims[0];
  dataset.height = images.dims[1];
  dataset.width = images.dims[2];
  dataset.channels = 1;
  dataset.classes = 1 + int64_t{*std::ranges::max_element(labels.bytes)};
  dataset.images_crc32c = images.crc32c;
  dataset.labels_crc32c = labels.crc32c;
  dataset.images = std::move(images.bytes);
  dataset.mapped = std::move(images.mapped);
  dataset.labels.assign(labels.bytes.begin(), labels.bytes.end());
  return dataset;
}

}  // namespace starring
