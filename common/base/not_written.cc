#include "common/base/not_written.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace starring {
namespace {

// A mark and not a code: files fail with many codes, and a disk that is full before the end is no such error.
constexpr char kMark[] = "starring/not_written";

}  // namespace

absl::Status NotWrittenError(absl::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kMark, absl::Cord());
  return status;
}

absl::Status NotWritten(const absl::Status& status, absl::string_view what) {
  if (status.ok()) return status;
  // One form for one thing and for several: "the trace", "the predictions".
  return NotWrittenError(absl::StrCat("could not write ", what, ": ", status.message()));
}

bool IsNotWritten(const absl::Status& status) { return status.GetPayload(kMark).has_value(); }

}  // namespace starring
