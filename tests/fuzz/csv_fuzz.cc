// CSV files: a byte that says which column has the labels, and whether they are numbers, the block of the training
// file, and the test file, if anything is left.
#include <cmath>
#include <cstring>
#include <string>

#include "common/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/reached.h"
#include "worker/data/dataset_readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static starring::MemoryFile& train = *new starring::MemoryFile;
  static starring::MemoryFile& test = *new starring::MemoryFile;
  starring::FuzzInput input(data, size);
  const int first = input.Byte(), label = first % 128;
  const bool are_numbers = first >= 128;
  train.Write(input.Block());
  const bool has_test = !input.empty();
  test.Write(input.Rest());
  const auto sets = starring::ReadCsv({.train = train.path(),
                                       .test = has_test ? test.path() : "",
                                       .label = label == 0 ? "" : std::to_string(label),
                                       .numbers = are_numbers});
  starring::Reached(sets.ok() ? "sets" : std::string(sets.status().message()));
  if (!sets.ok()) return 0;
  CHECK_GE(sets->train.count, 1);
  if (!sets->class_names.empty()) CHECK_EQ(std::ssize(sets->class_names), sets->train.classes);
  for (const starring::Dataset* const set : {&sets->train, &sets->test}) {
    CHECK_EQ(set->count, are_numbers ? std::ssize(set->targets) : std::ssize(set->labels));
    for (const float target : set->targets) CHECK(std::isfinite(target));
    CHECK_EQ(set->count * set->image_bytes(), std::ssize(set->images));
    for (const uint16_t label_class : set->labels) CHECK_LT(label_class, set->classes);
    for (size_t i = 0; i < set->images.size(); i += sizeof(float)) {
      float number = 0;
      std::memcpy(&number, set->images.data() + i, sizeof(number));
      CHECK(std::isfinite(number));
    }
  }
  return 0;
}
