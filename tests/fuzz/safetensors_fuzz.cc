// A safetensors file. An accepted file is written again, and must be read again with the same tensors.
#include <string>

#include "common/base/check.h"
#include "common/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::SilenceProtobuf();
  // The header's length has eight bytes. Random upper six bytes would nearly always make it too large.
  starring::FuzzInput input(data, size);
  std::string file;
  if (input.Byte() % 8 != 0) {
    const std::string header = input.Block();
    for (int i = 0; i < 8; ++i) file += static_cast<char>(i < 2 ? header.size() >> 8 * i : 0);
    file += header;
  }
  file += input.Rest();
  const auto tensors = starring::ParseSafetensors(file);
  if (!tensors.ok()) return 0;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : *tensors) {
    bytes += std::ssize(tensor.bytes);
  }
  CHECK_LE(bytes, std::ssize(file));
  const std::string written = starring::SerializeSafetensors(*tensors);
  const auto again = starring::ParseSafetensors(written);
  CHECK(again.ok()) << again.status().ToString();
  CHECK_EQ(again->size(), tensors->size());
  return 0;
}
