// Two files of CIFAR-10's records: a length, the first file, then the second. If the first byte says so, a short block
// is repeated to whole records, since a fuzzer would hardly produce 3073 bytes.
#include "common/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_file.h"
#include "worker/data/dataset_readers.h"

namespace {

constexpr size_t kRecordBytes = 3073;

// `count` records made of `pattern`, followed by `extra` bytes.
std::string Records(const std::string& pattern, int count, int extra) {
  if (pattern.empty()) return "";
  std::string record;
  while (record.size() < kRecordBytes) record += pattern;
  record.resize(kRecordBytes);
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
  std::string content = input.Block();
  if ((shape & 1) != 0) content = Records(content, (shape >> 1) & 1, (shape >> 2) & 1);
  first.Write(content);
  content = input.Rest();
  if ((shape & 8) != 0) content = Records(content, (shape >> 4) & 3, (shape >> 6) & 1);
  second.Write(content);
  const auto dataset = starring::ReadCifar10({.paths = {first.path(), second.path()}, .bytes_max = 3 * 3072});
  if (!dataset.ok()) return 0;
  CHECK_GE(dataset->count, 1);
  CHECK_LE(dataset->count, 3);
  CHECK_EQ(dataset->count, std::ssize(dataset->labels));
  CHECK_EQ(dataset->count * 3072, std::ssize(dataset->images));
  for (const uint8_t label : dataset->labels) CHECK_LT(label, 10);
  return 0;
}
