// Both files of an IDX data set: a length, the labels, then the images.
#include <algorithm>
#include <span>

#include "common/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_file.h"
#include "worker/data/dataset_readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static starring::MemoryFile& labels = *new starring::MemoryFile;
  static starring::MemoryFile& images = *new starring::MemoryFile;
  starring::FuzzInput input(data, size);
  labels.Write(input.Block());
  images.Write(input.Rest());
  using starring::MapData;
  const starring::IdxFiles files = {.images = images.path(), .labels = labels.path(), .map = MapData::kNever};
  const auto dataset = starring::ReadIdx(files);
  const auto mapped = starring::ReadIdx({.images = images.path(), .labels = labels.path(), .map = MapData::kAlways});
  // A mapped file has no limit of bytes.
  CHECK(mapped.ok() || !dataset.ok());
  if (!dataset.ok()) return 0;
  CHECK_EQ(mapped->images_crc32c, dataset->images_crc32c);
  mapped->ForEachBlock(0, mapped->count, mapped->count, [&](std::span<const uint8_t> values, int64_t) {
    CHECK(std::ranges::equal(values, dataset->images));
  });
  CHECK_GE(dataset->count, 1);
  CHECK_EQ(dataset->count, std::ssize(dataset->labels));
  CHECK_EQ(dataset->count * dataset->image_bytes(), std::ssize(dataset->images));
  for (const uint16_t label : dataset->labels) CHECK_LT(label, dataset->classes);
  return 0;
}
