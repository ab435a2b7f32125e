// A layer file's text.
#include <string>

#include "proto/starring/v1/layer_file.pb.h"
#include "tests/fuzz/fuzz_input.h"
#include "worker/model/layer_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::SilenceProtobuf();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto layers = starring::LayerFile::Parse(text, "model.textproto");
  if (!layers.ok()) return 0;
  for (int i = 0; i < layers->definition().layer_size(); ++i) {
    for (const char* field : {"kernel", "input", "none"}) (void)layers->LayerError(i, field, "reason");
  }
  return 0;
}
