// A zip archive of NumPy's arrays.
#include "common/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_file.h"
#include "worker/data/dataset_readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static starring::MemoryFile& archive = *new starring::MemoryFile;
  starring::FuzzInput input(data, size);
  archive.Write(input.Rest());
  const auto sets = starring::ReadNpz(archive.path());
  if (!sets.ok()) return 0;
  CHECK_GE(sets->train.count, 1);
  for (const starring::Dataset* set : {&sets->train, &sets->test}) {
    CHECK_EQ(set->count, std::ssize(set->labels));
    CHECK_EQ(set->count * set->image_bytes(), std::ssize(set->images));
  }
  return 0;
}
