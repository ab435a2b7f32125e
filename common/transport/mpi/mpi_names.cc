#include "common/transport/mpi/mpi_names.h"

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/transport/mpi/mpi_runtime.h"

namespace starring {
namespace {

// The text that one published name can hold. The rest is for the terminating zero, and for the count of parts with
// which the first part begins.
constexpr size_t kNameBytesMax = MPI_MAX_PORT_NAME - 16;

std::string PartName(const std::string& name, size_t part) { return absl::StrCat("starring-check:", name, ":", part); }

// By default MPI would end the process.
void ReturnErrors() { MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); }

}  // namespace

absl::Status PublishMpiName(const std::string& name, const std::string& text) {
  ReturnErrors();
  const size_t parts = std::max<size_t>(1, (text.size() + kNameBytesMax - 1) / kNameBytesMax);
  // The first part is published last, so that a rank that finds it finds all others too.
  for (size_t part = parts; part-- > 0;) {
    std::string value = text.substr(part * kNameBytesMax, kNameBytesMax);
    if (part == 0) value = absl::StrCat(parts, " ", value);
    const int code = MPI_Publish_name(PartName(name, part).c_str(), MPI_INFO_NULL, value.c_str());
    if (code != MPI_SUCCESS) return MpiError("MPI_Publish_name", code);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> LookUpMpiName(const std::string& name) {
  ReturnErrors();
  std::string text;
  int parts = 1;
  for (int part = 0; part < parts; ++part) {
    char value[MPI_MAX_PORT_NAME + 1] = "";
    const int code = MPI_Lookup_name(PartName(name, static_cast<size_t>(part)).c_str(), MPI_INFO_NULL, value);
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    // That rank has not published yet, which is no error: the caller asks again.
    if (kind == MPI_ERR_NAME) return std::optional<std::string>();
    if (code != MPI_SUCCESS) return MpiError("MPI_Lookup_name", code);
    if (part > 0) {
      text += value;
      continue;
    }
    const std::pair<std::string, std::string> first = absl::StrSplit(value, absl::MaxSplits(' ', 1));
    if (!absl::SimpleAtoi(first.first, &parts) || parts < 1) {
      return absl::InternalError("MPI_Lookup_name returns a text that no rank has published");
    }
    text = first.second;
  }
  return std::optional<std::string>(std::move(text));
}

std::string MpiVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  // "Open MPI v4.1.4, package: ..."
  const std::string name = std::vector<std::string>(absl::StrSplit(std::string(text, length), ','))[0];
  return std::string(absl::string_view(name).substr(name.rfind('v') == std::string::npos ? 0 : name.rfind('v') + 1));
}

}  // namespace starring
