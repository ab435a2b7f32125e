#include "common/base/error_origin.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"

namespace starring {

static constexpr absl::string_view kMark = "starring/error_origin";

absl::Status WithOrigin(absl::Status status, ErrorOrigin origin) {
  CHECK(!status.ok());
  std::string bytes(sizeof(origin), '\0');
  std::memcpy(bytes.data(), &origin, sizeof(origin));
  status.SetPayload(kMark, absl::Cord(std::move(bytes)));
  return status;
}

ErrorOrigin OriginOf(const absl::Status& status) {
  ErrorOrigin origin;
  const absl::optional<absl::Cord> mark = status.GetPayload(kMark);
  if (!mark.has_value()) return origin;
  const std::string bytes(*mark);
  CHECK_EQ(bytes.size(), sizeof(origin));
  std::memcpy(&origin, bytes.data(), sizeof(origin));
  return origin;
}

}  // namespace starring
