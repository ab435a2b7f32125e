#include "common/transport/mpi/mpi_names.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/transport/mpi/mpi_library.h"

namespace starring {
namespace {

std::string PartName(const std::string& name, size_t part) { return absl::StrCat("starring-check:", name, ":", part); }

// The text that one published name can hold. The rest is for the terminating zero, and for a first character that says
// whether another part follows.
template <class Abi>
constexpr size_t kNameBytesMax = Abi::kPortNameBytes - 2;
constexpr char kMore = '+';
constexpr char kLast = '.';

template <class Abi>
absl::Status Publish(const MpiCalls<Abi>& calls, const std::string& name, const std::string& text) {
  // By default MPI would end the process.
  calls.mpi.Comm_set_errhandler(calls.handles.world, calls.handles.errors_return);
  const size_t parts = std::max<size_t>(1, (text.size() + kNameBytesMax<Abi> - 1) / kNameBytesMax<Abi>);
  // The first part is published last, so that a rank that finds it finds all others too.
  for (size_t part = parts; part-- > 0;) {
    const std::string value =
        std::string(1, part + 1 < parts ? kMore : kLast) + text.substr(part * kNameBytesMax<Abi>, kNameBytesMax<Abi>);
    const int code = calls.mpi.Publish_name(PartName(name, part).c_str(), calls.handles.info_null, value.c_str());
    if (code != kMpiSuccess) return calls.Error("MPI_Publish_name", code);
  }
  return absl::OkStatus();
}

template <class Abi>
absl::StatusOr<std::optional<std::string>> LookUp(const MpiCalls<Abi>& calls, const std::string& name) {
  calls.mpi.Comm_set_errhandler(calls.handles.world, calls.handles.errors_return);
  std::string text;
  for (size_t part = 0;; ++part) {
    char value[Abi::kPortNameBytes + 1] = {};
    const int code = calls.mpi.Lookup_name(PartName(name, part).c_str(), calls.handles.info_null, value);
    int kind = kMpiSuccess;
    calls.mpi.Error_class(code, &kind);
    // That rank has not published yet, which is no error: the caller asks again.
    if (kind == Abi::kErrorName) return std::optional<std::string>();
    if (code != kMpiSuccess) return calls.Error("MPI_Lookup_name", code);
    if (value[0] != kMore && value[0] != kLast) {
      return absl::InternalError("MPI_Lookup_name returns a text that no rank has published");
    }
    text += value + 1;
    if (value[0] == kLast) return std::optional<std::string>(std::move(text));
  }
}

}  // namespace

absl::Status PublishMpiName(const MpiRuntime& runtime, const std::string& name, const std::string& text) {
  return std::visit([&](const auto& calls) { return Publish(calls, name, text); }, runtime.library().calls);
}

absl::StatusOr<std::optional<std::string>> LookUpMpiName(const MpiRuntime& runtime, const std::string& name) {
  return std::visit([&](const auto& calls) { return LookUp(calls, name); }, runtime.library().calls);
}

}  // namespace starring
