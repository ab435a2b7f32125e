// Paths are bytes, and may be no UTF-8, which JSON and protobuf's strings have to be.
#ifndef STARRING_COMMON_BASE_UTF8_H_
#define STARRING_COMMON_BASE_UTF8_H_

#include <string>

#include "absl/strings/string_view.h"

namespace starring {

// `text` with \xNN in place of each byte that belongs to no UTF-8 character (RFC 3629). Texts that differ stay
// different, unless one has such a \xNN itself.
std::string AsUtf8(absl::string_view text);

}  // namespace starring

#endif  // STARRING_COMMON_BASE_UTF8_H_
