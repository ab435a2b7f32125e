// Two files of CIFAR's records: a length, the first file, then the second. If the first byte says so, a short block is
// repeated to whole records, since a fuzzer would hardly produce 3073 bytes, or the records have two labels.
#include <algorithm>
#include <span>

#include "common/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_file.h"
#include "worker/data/dataset_readers.h"

namespace {

// `count` records of record_bytes made of `pattern`, followed by `extra` bytes.
std::string Records(const std::string& pattern, size_t record_bytes, int count, int extra) {
  if (pattern.empty()) return "";
  std::string record;
  while (record.size() < record_bytes) record += pattern;
  record.resize(record_bytes);
  std::string records;
  for (int i = 0; i < count; ++i) records += record;
  return records + record.substr(0, extra);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static starring::MemoryFile& first = *new starring::MemoryFile;
  static starring::MemoryFile& second = *new starring::MemoryFile;
  starring::FuzzInput input(data, size);
  const int shape = input.Byte();
  const int64_t label_bytes = 1 + ((shape >> 7) & 1);
  const auto record_bytes = static_cast<size_t>(label_bytes + 3072);
  std::string content = input.Block();
  if ((shape & 1) != 0) content = Records(content, record_bytes, (shape >> 1) & 1, (shape >> 2) & 1);
  first.Write(content);
  content = input.Rest();
  if ((shape & 8) != 0) content = Records(content, record_bytes, (shape >> 4) & 3, (shape >> 6) & 1);
  second.Write(content);
  starring::CifarFiles files = {.paths = {first.path(), second.path()},
                                .label_bytes = label_bytes,
                                .label = label_bytes - 1,
                                .map = starring::MapData::kNever,
                                .bytes_max = 3 * 3072};
  const auto dataset = starring::ReadCifar(files);
  files.map = starring::MapData::kAlways;
  const auto mapped = starring::ReadCifar(files);
  // A mapped file has no limit of bytes.
  CHECK(mapped.ok() || !dataset.ok());
  if (!dataset.ok()) return 0;
  CHECK_EQ(mapped->images_crc32c, dataset->images_crc32c);
  mapped->ForEachBlock(0, mapped->count, mapped->count, [&](std::span<const uint8_t> values, int64_t) {
    CHECK(std::ranges::equal(values, dataset->images));
  });
  CHECK_GE(dataset->count, 1);
  CHECK_LE(dataset->count, 3);
  CHECK_EQ(dataset->count, std::ssize(dataset->labels));
  CHECK_EQ(dataset->count * 3072, std::ssize(dataset->images));
  for (const uint16_t label : dataset->labels) CHECK_LT(label, dataset->classes);
  return 0;
}
