// Divides a fuzzer's input into numbers and byte strings.
//
// Thread safety: one thread.
#ifndef STARRING_TESTS_FUZZ_FUZZ_INPUT_H_
#define STARRING_TESTS_FUZZ_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "google/protobuf/stubs/logging.h"

namespace starring {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }

  // A byte; 0 at the end of the input.
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }
  // A little-endian number.
  uint16_t Word() {
    const uint16_t low = Byte();
    return static_cast<uint16_t>(low | Byte() << 8);
  }

  // At most `size` bytes, copied to their own string, so that a sanitizer sees every access outside of them.
  std::string Bytes(size_t size) {
    const auto bytes = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(bytes.size());
    return std::string(bytes.begin(), bytes.end());
  }
  // A length of two bytes, then this many bytes.
  std::string Block() {
    const size_t size = Word();
    return Bytes(size);
  }
  std::string Rest() { return Bytes(rest_.size()); }

 private:
  std::span<const uint8_t> rest_;
};

// Protobuf prints a line for each message that it cannot parse, which is nearly every input.
inline void SilenceProtobuf() {
  static const auto& silencer = *new google::protobuf::LogSilencer;
  (void)silencer;
}

}  // namespace starring

#endif  // STARRING_TESTS_FUZZ_FUZZ_INPUT_H_
