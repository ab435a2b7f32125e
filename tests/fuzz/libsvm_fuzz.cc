// Files of libsvm: the block of the training file, and the test file, if anything is left.
#include <string>

#include "common/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/reached.h"
#include "worker/data/dataset_readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A pair of a few bytes becomes a row of 256 KiB.
  constexpr int64_t kBytesMax = 1 << 20;
  static starring::MemoryFile& train = *new starring::MemoryFile;
  static starring::MemoryFile& test = *new starring::MemoryFile;
  starring::FuzzInput input(data, size);
  train.Write(input.Block());
  const bool has_test = !input.empty();
  test.Write(input.Rest());
  const auto sets =
      starring::ReadLibsvm({.train = train.path(), .test = has_test ? test.path() : "", .bytes_max = kBytesMax});
  starring::Reached(sets.ok() ? "sets" : std::string(sets.status().message()));
  if (!sets.ok()) return 0;
  CHECK_GE(sets->train.count, 1);
  for (const starring::Dataset* const set : {&sets->train, &sets->test}) {
    CHECK_EQ(set->count, std::ssize(set->labels));
    CHECK_EQ(set->count * set->image_bytes(), std::ssize(set->images));
    CHECK_LE(std::ssize(set->images), kBytesMax);
    for (const uint16_t label : set->labels) CHECK_LT(label, set->classes);
  }
  return 0;
}
