#include "worker/data/files/file_kind.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace starring {
namespace {

struct Kind {
  absl::string_view begin;
  absl::string_view what;
  absl::string_view way_out;
};

constexpr absl::string_view kUnpack = "unpack it";
constexpr absl::string_view kConvert = "convert it to the data set's own format";

constexpr Kind kKinds[] = {
    {"version https://git-lfs", "a pointer of Git LFS", "fetch the file itself with git lfs pull"},
    // FileStream has unzipped the file once before its beginning comes here.
    {"\x1f\x8b", "gzipped twice", "gunzip it once"},
    {"PK\x03\x04", "a zip archive", kUnpack},
    {"BZh", "compressed by bzip2", kUnpack},
    {absl::string_view("\xfd\x37zXZ\0", 6), "compressed by xz", kUnpack},
    {"\x28\xb5\x2f\xfd", "compressed by zstd", kUnpack},
    {"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", kUnpack},
    {"\x89PNG", "a PNG image", kConvert},
    {"\xff\xd8\xff", "a JPEG image", kConvert},
    {"\x93NUMPY", "an array of NumPy", "read it by --dataset=npy"},
    {"\x89HDF", "an HDF5 file", kConvert},
    {"PAR1", "a Parquet file", kConvert},
};

// A page may begin with spaces, and so may XML, in which some servers send their errors. Not with a tab: a record of
// CIFAR-10 with label 9 does.
bool IsPage(absl::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \r\n"), text.size()));
  return text.size() >= 2 && text[0] == '<' && (absl::ascii_isalpha(text[1]) || text[1] == '!' || text[1] == '?');
}

}  // namespace

absl::Status RefuseOtherKind(const std::string& path, std::span<const uint8_t> first) {
  const absl::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  if (IsPage(text)) {
    return absl::DataLossError(absl::StrCat(path, " is a web page: the download failed: download it again"));
  }
  const auto* const kind =
      std::ranges::find_if(kKinds, [&](const Kind& one) { return absl::StartsWith(text, one.begin); });
  if (kind == std::end(kKinds)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, " is ", kind->what, ": ", kind->way_out));
}

}  // namespace starring
