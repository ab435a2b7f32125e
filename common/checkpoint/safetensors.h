// The safetensors format: eight bytes of header length, a JSON header, raw little-endian tensors.
// https://huggingface.co/docs/safetensors (format), as of version 0.4.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_CHECKPOINT_SAFETENSORS_H_
#define STARRING_COMMON_CHECKPOINT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring {

enum class TensorType { kFloat32, kInt64 };

struct TensorView {
  TensorType type = TensorType::kFloat32;
  std::vector<int64_t> shape;  // empty: a scalar
  std::span<const std::byte> bytes;
};

struct TensorShape {
  TensorType type = TensorType::kFloat32;
  std::vector<int64_t> shape;
};

// The bytes [begin, end) of a file that hold a tensor.
struct TensorPlace {
  TensorType type = TensorType::kFloat32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

inline constexpr int64_t kSafetensorsLengthBytes = 8;  // a file begins with its header's length

// The beginning of a file: the length, the header and padding to 64 bytes. The tensors follow in the order of their
// names, without gaps.
std::string SafetensorsHeader(const std::map<std::string, TensorShape>& tensors);

// The length of the header, as the first 8 bytes of a file say. DataLoss when the file is shorter than that, or the
// length is above `header_bytes_max`. REQUIRES: length.size() == kSafetensorsLengthBytes.
absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view length, int64_t file_bytes, int64_t header_bytes_max);

// The tensors of a file of `file_bytes` whose header is `json`. Errors as ParseSafetensors.
absl::StatusOr<std::map<std::string, TensorPlace>> ParseSafetensorsHeader(absl::string_view json, int64_t file_bytes);

// The file as one string, with the tensors in the order of their names and the first one 64-byte aligned.
// REQUIRES: the bytes of each tensor fit its shape and type.
std::string SerializeSafetensors(const std::map<std::string, TensorView>& tensors);

// The tensors of `file`; their bytes point into it. DataLoss with what was expected and found: a header longer than the
// file or limits.h allows, JSON that does not parse, a type we do not know, a range that does not fit its shape,
// overlaps another or leaves the file.
absl::StatusOr<std::map<std::string, TensorView>> ParseSafetensors(absl::string_view file);

}  // namespace starring

#endif  // STARRING_COMMON_CHECKPOINT_SAFETENSORS_H_
