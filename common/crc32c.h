// CRC-32C (Castagnoli), the checksum of TFRecord files. A few bytes at a time: for small records.
#ifndef STARRING_COMMON_CRC32C_H_
#define STARRING_COMMON_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace starring {

uint32_t Crc32c(absl::string_view bytes);

}  // namespace starring

#endif  // STARRING_COMMON_CRC32C_H_
