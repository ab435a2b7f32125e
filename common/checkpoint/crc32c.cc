#include "common/checkpoint/crc32c.h"

#include <array>
#include <cstring>

namespace starring {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, with its bits reversed: the lowest bit is sent first

// Entry b is what the division by the polynomial, bit by bit, makes of the byte b. One look-up then replaces eight
// shifts.
constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)
// Only this function is compiled for SSE 4.2, so the program also starts on a CPU that lacks it. For newer clangs the
// instruction is a set of its own, crc32. A checksum begins and
// ends with all bits inverted: inverting `crc` undoes the last inversion, and the checksum goes on from there.
__attribute__((target("sse4.2,crc32"))) uint32_t ExtendByInstruction(uint32_t crc, std::span<const std::byte> bytes) {
  uint64_t state = ~crc;
  for (; bytes.size() >= sizeof(uint64_t); bytes = bytes.subspan(sizeof(uint64_t))) {
    uint64_t word;
    // The bytes may begin anywhere. The compiler makes one unaligned load of this.
    std::memcpy(&word, bytes.data(), sizeof(word));
    state = __builtin_ia32_crc32di(state, word);
  }
  auto last = static_cast<uint32_t>(state);
  for (const std::byte byte : bytes) last = __builtin_ia32_crc32qi(last, static_cast<uint8_t>(byte));
  return ~last;
}
#endif

}  // namespace

uint32_t ExtendCrc32cByTable(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  for (const std::byte byte : bytes) crc = kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ExtendByInstruction(crc, bytes);
#endif
  return ExtendCrc32cByTable(crc, bytes);
}

uint32_t Crc32c(absl::string_view bytes) {
  return ExtendCrc32c(0, std::as_bytes(std::span(bytes.data(), bytes.size())));
}

}  // namespace starring
