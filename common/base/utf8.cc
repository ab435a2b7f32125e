#include "common/base/utf8.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace starring {
namespace {

// Past the end the answer is 0, which continues no character, so a text that was cut fails the same comparisons.
uint8_t ByteAt(absl::string_view text, size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; }

// The bytes of the character with which `text` begins; 0 if it begins with none. REQUIRES: `text` is not empty.
size_t CharacterBytes(absl::string_view text) {
  const uint8_t first = ByteAt(text, 0), second = ByteAt(text, 1);
  if (first < 0x80) return 1;
  size_t bytes = 0;
  // The second byte's range excludes longer spellings of a character, surrogates, and what is above U+10FFFF.
  uint8_t least = 0x80, most = 0xbf;
  // 0xc0 and 0xc1 would only begin longer spellings of ASCII.
  if (first >= 0xc2 && first <= 0xdf) {
    bytes = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    bytes = 3;
    if (first == 0xe0) least = 0xa0;
    if (first == 0xed) most = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    bytes = 4;
    if (first == 0xf0) least = 0x90;
    if (first == 0xf4) most = 0x8f;
  }
  if (bytes == 0 || second < least || second > most) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if ((ByteAt(text, i) & 0xc0) != 0x80) return 0;
  }
  return bytes;
}

}  // namespace

std::string AsUtf8(absl::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    if (bytes == 0) {
      absl::StrAppendFormat(&result, "\\x%02x", ByteAt(text, 0));
      text.remove_prefix(1);
      continue;
    }
    result.append(text.data(), bytes);
    text.remove_prefix(bytes);
  }
  return result;
}

}  // namespace starring
