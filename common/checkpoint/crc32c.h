// CRC-32C (Castagnoli), the checksum of TFRecord files and of data sets. 8 bytes in 3 cycles where the CPU has the
// instruction (SSE 4.2), else byte by byte from a table.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_CHECKPOINT_CRC32C_H_
#define STARRING_COMMON_CHECKPOINT_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"

namespace starring {

uint32_t Crc32c(absl::string_view bytes);

// The checksum of a text followed by `bytes`, where `crc` is the checksum of the text. 0 is the checksum of nothing.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

// The same without the instruction, for CPUs that lack it.
uint32_t ExtendCrc32cByTable(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace starring

#endif  // STARRING_COMMON_CHECKPOINT_CRC32C_H_
