// A checkpoint's folder: manifest, model and optimizer, each after its length. The first byte chooses between the
// input's manifest and one with the files' true sizes and CRCs, without which no input would get past those checks.
#include <stdlib.h>
#include <zlib.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/reached.h"

namespace {

using starring::Layout;

// A folder whose files are links to memory, which is faster than a disk.
class Folder {
 public:
  Folder() {
    CHECK(mkdtemp(path_.data()) != nullptr) << path_;
    std::filesystem::create_symlink(manifest.path(), path_ + "/manifest.json");
    std::filesystem::create_symlink(model.path(), path_ + "/model.safetensors");
    std::filesystem::create_symlink(optimizer.path(), path_ + "/optimizer.safetensors");
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

  starring::MemoryFile manifest, model, optimizer;

 private:
  std::string path_ = "/tmp/starring_fuzz.XXXXXX";
};

std::string FileEntry(const char* name, const std::string& content) {
  const auto crc = crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size()));
  return absl::StrCat(R"({"name":")", name, R"(","size_bytes":)", content.size(), R"(,"crc32":)", crc, "}");
}

// A length of two bytes, a header and tensors. The length is extended to the eight bytes of the format.
std::string Safetensors(const std::string& block) {
  starring::FuzzInput input(reinterpret_cast<const uint8_t*>(block.data()), block.size());
  const std::string header = input.Block();
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(i < 2 ? header.size() >> 8 * i : 0);
  return file + header + input.Rest();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Folder folder;
  starring::SilenceProtobuf();
  static const Layout& layout = *new Layout(*Layout::Create(
      {{.name = "conv.weight", .dims = {1, 2, 2, 1}, .torch_axes = {0, 3, 1, 2}}, {.name = "fc.bias", .dims = {3}}}));
  starring::FuzzInput input(data, size);
  const int shape = input.Byte();
  std::string manifest = input.Block();
  std::string model = input.Block(), optimizer = input.Rest();
  if ((shape & 1) != 0) model = Safetensors(model);
  if ((shape & 1) != 0) optimizer = Safetensors(optimizer);
  const std::string files = absl::StrCat(R"("files":[)", FileEntry("model.safetensors", model), ",",
                                         FileEntry("optimizer.safetensors", optimizer), "]");
  if ((shape & 2) != 0) manifest = absl::StrCat(R"({"step":"3",)", files, "}");
  if ((shape & 6) == 4) manifest = absl::StrCat(manifest, files, "}");
  folder.manifest.Write(manifest);
  folder.model.Write(model);
  folder.optimizer.Write(optimizer);
  const auto checkpoint =
      starring::ReadCheckpoint(folder.path(), layout, {"momentum_buffer"}, {{"bn.running_mean", 2}});
  starring::Reached(checkpoint.ok() ? "read" : checkpoint.status().ToString());
  if (!checkpoint.ok()) return 0;
  CHECK_GE(checkpoint->step, 0);
  CHECK_EQ(std::ssize(checkpoint->parameters), layout.element_count());
  CHECK_EQ(checkpoint->state.size(), 1u);
  CHECK_EQ(std::ssize(checkpoint->state[0]), layout.element_count());
  return 0;
}
