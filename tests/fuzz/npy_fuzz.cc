// NumPy's arrays of images and labels, each a block of the header's dictionary and a block of elements. If the first
// byte says so, a block is a whole file instead.
#include <algorithm>
#include <span>

#include "common/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_file.h"
#include "worker/data/dataset_readers.h"
#include "worker/data/files/file_stream.h"

namespace {

// A file of the version `version`, which is 0 for a file that says nothing by itself.
std::string File(int version, starring::FuzzInput& input) {
  const std::string header = input.Block();
  const std::string elements = input.Block();
  if (version == 0) return header + elements;
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file += static_cast<char>(header.size() >> 8 * i);
  return file + header + elements;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static starring::MemoryFile& images = *new starring::MemoryFile;
  static starring::MemoryFile& labels = *new starring::MemoryFile;
  starring::FuzzInput input(data, size);
  const int versions = input.Byte();
  images.Write(File(versions & 3, input));
  labels.Write(File((versions >> 2) & 3, input));
  const auto read = [](starring::MapData map) {
    const auto images_stream = starring::FileStream::Open(images.path());
    const auto labels_stream = starring::FileStream::Open(labels.path());
    CHECK(images_stream.ok() && labels_stream.ok());
    return starring::ReadNpy(**images_stream, labels_stream->get(), map);
  };
  const auto dataset = read(starring::MapData::kNever), mapped = read(starring::MapData::kAlways);
  // A mapped file has no limit of bytes.
  CHECK(mapped.ok() || !dataset.ok());
  if (!dataset.ok()) return 0;
  CHECK_EQ(mapped->images_crc32c, dataset->images_crc32c);
  mapped->ForEachBlock(0, mapped->count, mapped->count, [&](std::span<const uint8_t> values, int64_t) {
    CHECK(std::ranges::equal(values, dataset->images));
  });
  CHECK_GE(dataset->count, 1);
  if (dataset->target == starring::TargetType::kClass) CHECK_EQ(dataset->count, std::ssize(dataset->labels));
  CHECK_EQ(dataset->count * dataset->image_bytes(), std::ssize(dataset->images));
  for (size_t at = 0; dataset->type == starring::FieldType::kNumbers && at < dataset->images.size(); at += 4) {
    float number = 0;
    std::memcpy(&number, dataset->images.data() + at, sizeof number);
    CHECK(std::isfinite(number));
  }
  for (const uint16_t label : dataset->labels) CHECK_LT(label, dataset->classes);
  return 0;
}
