#include "common/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "proto/starring/v1/checkpoint.pb.h"

namespace starring {
namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;
using google::protobuf::Value;

constexpr char kMetadata[] = "__metadata__";

const char* TypeName(TensorType type) { return type == TensorType::kFloat32 ? "F32" : "I64"; }
int64_t TypeBytes(TensorType type) { return type == TensorType::kFloat32 ? 4 : 8; }

absl::Status Damaged(absl::string_view what) { return absl::DataLossError(absl::StrCat("safetensors: ", what)); }

Value StringValue(const std::string& text) {
  Value value;
  value.set_string_value(text);
  return value;
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.always_print_primitive_fields = true;  // a scalar's empty shape
  print.preserve_proto_field_names = true;
  std::string json;
  CHECK(google::protobuf::util::MessageToJsonString(message, &json, print).ok());
  return json;
}

// A JSON number that must be a count or an offset. Protobuf reads JSON numbers as doubles, which are exact up to 2^53.
absl::StatusOr<int64_t> WholeNumber(const Value& value, absl::string_view name) {
  const double number = value.number_value();
  if (value.kind_case() != Value::kNumberValue || number < 0 || number > 0x1p53 || number != std::floor(number)) {
    return Damaged(
        absl::StrCat("tensor ", name, " has a size or offset that is no whole number: ", value.ShortDebugString()));
  }
  return static_cast<int64_t>(number);
}

absl::StatusOr<const Value*> Field(const Struct& entry, const char* field, Value::KindCase kind,
                                   absl::string_view name) {
  const auto found = entry.fields().find(field);
  if (found == entry.fields().end() || found->second.kind_case() != kind) {
    return Damaged(absl::StrCat("tensor ", name, " has no usable \"", field, "\""));
  }
  return &found->second;
}

// Offsets in the header count from the header's end; `data_bytes` follow there. Shape and range of the result agree, so
// a reader may allocate by either.
absl::StatusOr<TensorPlace> ParseEntry(const Struct& entry, absl::string_view name, int64_t data_bytes) {
  TensorPlace tensor;
  ASSIGN_OR_RETURN(const Value* type, Field(entry, "dtype", Value::kStringValue, name));
  if (type->string_value() == "I64") {
    tensor.type = TensorType::kInt64;
  } else if (type->string_value() != "F32") {
    return Damaged(absl::StrCat("tensor ", name, " has type ", type->string_value(), ", expected F32 or I64"));
  }
  ASSIGN_OR_RETURN(const Value* shape, Field(entry, "shape", Value::kListValue, name));
  // A shape in a damaged file could otherwise be as long as the header.
  if (const int axes = shape->list_value().values_size(); axes > kTensorAxesMax) {
    return Damaged(absl::StrCat("tensor ", name, " has ", axes, " axes, at most ", kTensorAxesMax, " are allowed"));
  }
  int64_t bytes = TypeBytes(tensor.type);
  for (const Value& value : shape->list_value().values()) {
    ASSIGN_OR_RETURN(const int64_t size, WholeNumber(value, name));
    tensor.shape.push_back(size);
    // A shape from a damaged file may overflow, and then seem to fit its range.
    if (__builtin_mul_overflow(bytes, size, &bytes))
      return Damaged(absl::StrCat("tensor ", name, " is absurdly large"));
  }
  ASSIGN_OR_RETURN(const Value* offsets, Field(entry, "data_offsets", Value::kListValue, name));
  const ListValue& list = offsets->list_value();
  if (list.values_size() != 2) return Damaged(absl::StrCat("tensor ", name, " has no begin and end"));
  ASSIGN_OR_RETURN(tensor.begin, WholeNumber(list.values(0), name));
  ASSIGN_OR_RETURN(tensor.end, WholeNumber(list.values(1), name));
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    return Damaged(absl::StrCat("tensor ", name, " is in bytes ", tensor.begin, " to ", tensor.end, ", the file has ",
                                data_bytes));
  }
  if (tensor.end - tensor.begin != bytes) {
    return Damaged(absl::StrCat("tensor ", name, " of shape [", absl::StrJoin(tensor.shape, ", "), "] needs ", bytes,
                                " bytes, the file gives it ", tensor.end - tensor.begin));
  }
  return tensor;
}

// Tensors must cover the data without a hole or an overlap, as the format demands. With overlaps a small file could
// fill any amount of memory, because thousands of tensors might share the same bytes.
absl::Status CheckCover(const std::map<std::string, TensorPlace>& tensors, int64_t data_bytes) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, tensor] : tensors) ranges.emplace_back(tensor.begin, tensor.end);
  std::sort(ranges.begin(), ranges.end());
  // Sorted by where they begin, each range must begin where the one before it has ended.
  int64_t expected = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin == end) continue;  // an empty tensor may be anywhere
    if (begin != expected) return Damaged("tensors overlap or leave a hole");
    expected = end;
  }
  if (expected == data_bytes) return absl::OkStatus();
  return Damaged(absl::StrCat("tensors end before the file does, which has ", data_bytes, " bytes of them"));
}

}  // namespace

std::string SafetensorsHeader(const std::map<std::string, TensorShape>& tensors) {
  // Written entry by entry: protobuf writes the members of a whole Struct in an order that changes from run to run, and
  // equal checkpoints must be equal files.
  std::string header = absl::StrCat("{", ToJson(StringValue(kMetadata)), ":{\"format\":\"pt\"}");
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    // Every reader would take a tensor of this name for metadata.
    CHECK(name != kMetadata);
    int64_t bytes = TypeBytes(tensor.type);
    v1::SafetensorsEntry entry;
    entry.set_dtype(TypeName(tensor.type));
    for (int64_t size : tensor.shape) {
      entry.add_shape(static_cast<double>(size));
      bytes *= size;
    }
    // Offsets follow the names' order, in which the caller writes the tensors.
    entry.add_data_offsets(static_cast<double>(offset));
    entry.add_data_offsets(static_cast<double>(offset + bytes));
    absl::StrAppend(&header, ",", ToJson(StringValue(name)), ":", ToJson(entry));
    offset += bytes;
  }
  header += "}";
  // The format allows spaces at the header's end. They put the first tensor on a cache line, for readers that map the
  // file.
  while ((kSafetensorsLengthBytes + header.size()) % kCacheLineBytes != 0) header += ' ';
  std::string length(kSafetensorsLengthBytes, '\0');
  const uint64_t header_bytes = header.size();
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(length.data(), &header_bytes, length.size());
  return length + header;
}

std::string SerializeSafetensors(const std::map<std::string, TensorView>& tensors) {
  std::map<std::string, TensorShape> shapes;
  for (const auto& [name, tensor] : tensors) {
    int64_t bytes = TypeBytes(tensor.type);
    for (int64_t size : tensor.shape) bytes *= size;
    CHECK_EQ(bytes, tensor.bytes.size()) << name;
    shapes[name] = {.type = tensor.type, .shape = tensor.shape};
  }
  std::string file = SafetensorsHeader(shapes);
  for (const auto& [name, tensor] : tensors) {
    file.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return file;
}

absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view length, int64_t file_bytes, int64_t header_bytes_max) {
  CHECK_EQ(length.size(), kSafetensorsLengthBytes);
  uint64_t bytes = 0;
  std::memcpy(&bytes, length.data(), length.size());
  const int64_t bytes_max = std::min(file_bytes - kSafetensorsLengthBytes, header_bytes_max);
  // The lengths are compared without a sign: as an int64_t, a length of 2^63 or more would be negative, and pass for a
  // short one.
  if (bytes <= static_cast<uint64_t>(bytes_max)) return static_cast<int64_t>(bytes);
  return Damaged(absl::StrCat("the header claims ", bytes, " bytes, at most ", bytes_max, " are possible"));
}

absl::StatusOr<std::map<std::string, TensorPlace>> ParseSafetensorsHeader(absl::string_view json, int64_t file_bytes) {
  const int64_t data_begin = kSafetensorsLengthBytes + static_cast<int64_t>(json.size());
  // SafetensorsHeaderBytes has bounded the header by the file.
  CHECK_LE(data_begin, file_bytes);
  Struct header;
  const auto parsed = google::protobuf::util::JsonStringToMessage(std::string(json), &header);
  if (!parsed.ok()) return Damaged(absl::StrCat("the header is no JSON object: ", std::string(parsed.message())));
  std::map<std::string, TensorPlace> tensors;
  for (const auto& [name, value] : header.fields()) {
    if (name == kMetadata) continue;
    if (value.kind_case() != Value::kStructValue) return Damaged(absl::StrCat("tensor ", name, " is no JSON object"));
    ASSIGN_OR_RETURN(tensors[name], ParseEntry(value.struct_value(), name, file_bytes - data_begin));
  }
  RETURN_IF_ERROR(CheckCover(tensors, file_bytes - data_begin));
  // From here on, positions count from the beginning of the file, where a reader seeks to them.
  for (auto& [name, tensor] : tensors) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  return tensors;
}

absl::StatusOr<std::map<std::string, TensorView>> ParseSafetensors(absl::string_view file) {
  const auto file_bytes = static_cast<int64_t>(file.size());
  if (file_bytes < kSafetensorsLengthBytes) {
    return Damaged(absl::StrCat("expected at least 8 bytes, found ", file.size()));
  }
  ASSIGN_OR_RETURN(const int64_t header_bytes, SafetensorsHeaderBytes(file.substr(0, kSafetensorsLengthBytes),
                                                                      file_bytes, kSafetensorsHeaderBytesMax));
  ASSIGN_OR_RETURN(const auto places,
                   ParseSafetensorsHeader(file.substr(kSafetensorsLengthBytes, header_bytes), file_bytes));
  std::map<std::string, TensorView> tensors;
  for (const auto& [name, place] : places) {
    const absl::string_view bytes = file.substr(place.begin, place.end - place.begin);
    tensors[name] = {
        .type = place.type, .shape = place.shape, .bytes = std::as_bytes(std::span(bytes.data(), bytes.size()))};
  }
  return tensors;
}

}  // namespace starring
