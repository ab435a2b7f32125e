#include "worker/data/files/npy_array.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/data/files/file_kind.h"

namespace starring {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kShownBytes = 60;  // of a header that is refused

struct Type {
  absl::string_view code;  // behind the byte order
  absl::string_view name;
};
constexpr Type kTypes[] = {{"b1", "bool"},   {"u1", "uint8"},   {"u2", "uint16"},  {"u4", "uint32"},
                           {"u8", "uint64"}, {"i1", "int8"},    {"i2", "int16"},   {"i4", "int32"},
                           {"i8", "int64"},  {"f2", "float16"}, {"f4", "float32"}, {"f8", "float64"}};

// The rest of the dictionary's text, and the fields that were read so far.
class Parser {
 public:
  Parser(absl::string_view text, absl::string_view path) : all_(text), left_(text), path_(path) {}

  absl::StatusOr<NpyArray> Parse() {
    RETURN_IF_ERROR(Expect('{'));
    while (!Take('}')) {
      ASSIGN_OR_RETURN(const std::string key, String());
      RETURN_IF_ERROR(Expect(':'));
      RETURN_IF_ERROR(Value(key));
      if (!Take(',')) {
        RETURN_IF_ERROR(Expect('}'));
        break;
      }
    }
    // All three keys are required, since a default could hide a damaged header. Padding may follow, and nothing else.
    Skip();
    if (!left_.empty() || !has_type_ || !has_order_ || !has_shape_) return Damaged();
    return std::move(array_);
  }

 private:
  absl::Status Error(absl::string_view reason) const { return absl::DataLossError(absl::StrCat(path_, " ", reason)); }
  absl::Status Damaged() const {
    return Error(
        absl::StrCat("has no header of NumPy: expected {'descr': ..., 'fortran_order': False, 'shape': ...}, "
                     "found ",
                     absl::CHexEscape(all_.substr(0, kShownBytes)), ": write it again with numpy.save"));
  }

  void Skip() { left_ = absl::StripLeadingAsciiWhitespace(left_); }
  bool Take(char wanted) {
    Skip();
    if (left_.empty() || left_.front() != wanted) return false;
    left_.remove_prefix(1);
    return true;
  }
  absl::Status Expect(char wanted) { return Take(wanted) ? absl::OkStatus() : Damaged(); }

  absl::StatusOr<std::string> String() {
    Skip();
    if (left_.empty() || (left_.front() != '\'' && left_.front() != '"')) return Damaged();
    const size_t end = left_.find(left_.front(), 1);
    if (end == absl::string_view::npos) return Damaged();
    std::string text(left_.substr(1, end - 1));
    left_.remove_prefix(end + 1);
    return text;
  }

  absl::Status Value(absl::string_view key) {
    // A key that comes twice could be checked in one meaning and used in the other.
    if (key == "descr" && !std::exchange(has_type_, true)) return ReadType();
    if (key == "fortran_order" && !std::exchange(has_order_, true)) return ReadOrder();
    if (key == "shape" && !std::exchange(has_shape_, true)) return ReadShape();
    return Damaged();
  }

  absl::Status ReadType() {
    Skip();
    if (absl::StartsWith(left_, "[")) {
      return Error("is an array of records: save each of its columns by itself, as numbers");
    }
    ASSIGN_OR_RETURN(const std::string type, String());
    absl::string_view code = type;
    if (absl::StrContains(code, 'O')) {
      return Error("is an array of Python objects, which are not read: save it as numbers");
    }
    if (absl::ConsumePrefix(&code, ">") && !absl::EndsWith(code, "1")) {
      return Error(
          absl::StrCat("has big-endian numbers (", type, "): save array.astype(array.dtype.newbyteorder(\"<\"))"));
    }
    if (!absl::ConsumePrefix(&code, "<")) absl::ConsumePrefix(&code, "|");
    const auto* const known = std::ranges::find(kTypes, code, &Type::code);
    if (known == std::end(kTypes)) {
      return Error(absl::StrCat("has elements of the type ", absl::CHexEscape(type),
                                ": expected bool, integers or floating-point numbers of up to 64 bits"));
    }
    array_.kind = code[0];
    array_.element_bytes = code[1] - '0';
    return absl::OkStatus();
  }

  absl::Status ReadOrder() {
    Skip();
    if (absl::ConsumePrefix(&left_, "False")) return absl::OkStatus();
    if (!absl::ConsumePrefix(&left_, "True")) return Damaged();
    return Error("is in Fortran's order: save numpy.ascontiguousarray(array)");
  }

  absl::Status ReadShape() {
    RETURN_IF_ERROR(Expect('('));
    while (!Take(')')) {
      Skip();
      // SimpleAtoi alone would accept a sign and spaces. It refuses an empty text.
      const auto* const end = std::ranges::find_if_not(left_, absl::ascii_isdigit);
      const absl::string_view digits = left_.substr(0, static_cast<size_t>(end - left_.begin()));
      int64_t size = 0;
      if (!absl::SimpleAtoi(digits, &size)) return Damaged();
      left_.remove_prefix(digits.size());
      if (size == 0) return Error("has a dimension of 0: expected one sample or more");
      array_.shape.push_back(size);
      if (std::ssize(array_.shape) > kNpyDimensionsMax) {
        return Error(absl::StrCat("has more than ", kNpyDimensionsMax, " dimensions"));
      }
      if (!Take(',')) {
        RETURN_IF_ERROR(Expect(')'));
        break;
      }
    }
    if (array_.shape.empty()) return Error("has no dimension: expected an array of samples");
    return absl::OkStatus();
  }

  const absl::string_view all_;
  absl::string_view left_;
  const absl::string_view path_;
  NpyArray array_;
  bool has_type_ = false, has_order_ = false, has_shape_ = false;
};

// The number of elements; none if it is beyond 64 bits.
std::optional<int64_t> Product(std::span<const int64_t> shape) {
  int64_t product = 1;
  for (const int64_t size : shape) {
    // `product` is at least 1, because ReadShape refuses a dimension of 0.
    if (size > std::numeric_limits<int64_t>::max() / product) return std::nullopt;
    product *= size;
  }
  return product;
}

absl::Status CheckSize(const ByteStream& stream, const NpyArray& array, int64_t header_bytes) {
  const std::optional<int64_t> elements = Product(array.shape);
  // Readers allocate memory for all elements that the header promises, so the promise is checked before.
  const int64_t possible = stream.size_bytes_max() - header_bytes;
  if (elements.has_value() && *elements <= possible / array.element_bytes) return absl::OkStatus();
  const std::string found = elements.has_value()
                                ? absl::StrFormat("%d elements of %d bytes", *elements, array.element_bytes)
                                : "more than 2^63 elements";
  return absl::DataLossError(absl::StrCat(stream.path(), " is truncated: its header says ", found,
                                          ", after it come at most ", possible, " bytes: copy or save it again"));
}

}  // namespace

int64_t NpyArray::element_count() const { return Product(shape).value_or(0); }

std::string NpyArray::type() const {
  const std::string code = absl::StrCat(std::string(1, kind), element_bytes);
  const auto* const known = std::ranges::find(kTypes, code, &Type::code);
  return std::string(known == std::end(kTypes) ? code : known->name);
}

absl::StatusOr<NpyArray> ParseNpyHeader(absl::string_view text, absl::string_view path) {
  return Parser(text, path).Parse();
}

absl::StatusOr<NpyArray> ReadNpyHeader(ByteStream& stream) {
  // Magic number, version, length of the header: 10 bytes in version 1, 12 since version 2.
  std::array<uint8_t, 12> head{};
  ASSIGN_OR_RETURN(int64_t read, stream.Read(std::span(head).first(10)));
  const absl::string_view magic(reinterpret_cast<const char*>(head.data()), kMagic.size());
  if (read >= std::ssize(kMagic) && magic != kMagic) {
    // A known format is named. Other bytes are shown by the message below.
    RETURN_IF_ERROR(RefuseOtherKind(stream.path(), std::span(head).first(static_cast<size_t>(read))));
  }
  if (read < 10 || magic != kMagic) {
    return absl::DataLossError(absl::StrCat(
        stream.path(), " is no array of NumPy: expected the first bytes ", absl::CHexEscape(kMagic), ", found ",
        absl::CHexEscape(magic.substr(0, static_cast<size_t>(read))), ": write it with numpy.save"));
  }
  // The minor version, which is byte 7, is 0 in all versions.
  const int version = head[6];
  if (version < 1 || version > 3) {
    return absl::DataLossError(
        absl::StrCat(stream.path(), " has version ", version, " of NumPy's format: expected 1, 2 or 3"));
  }
  int64_t header_bytes = head[8] | head[9] << 8;
  if (version > 1) {
    ASSIGN_OR_RETURN(read, stream.Read(std::span(head).subspan(10)));
    header_bytes |= int64_t{head[10]} << 16 | int64_t{head[11]} << 24;
  }
  if (header_bytes > kNpyHeaderBytesMax) {
    return absl::DataLossError(absl::StrCat(stream.path(), " says that its header has ", header_bytes,
                                            " bytes: expected at most ", kNpyHeaderBytesMax));
  }
  std::string text(static_cast<size_t>(header_bytes), '\0');
  ASSIGN_OR_RETURN(read, stream.Read({reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  if (read < header_bytes) {
    return absl::DataLossError(
        absl::StrCat(stream.path(), " is truncated: expected a header of ", header_bytes, " bytes, found ", read));
  }
  ASSIGN_OR_RETURN(NpyArray array, ParseNpyHeader(text, stream.path()));
  RETURN_IF_ERROR(CheckSize(stream, array, (version > 1 ? 12 : 10) + header_bytes));
  return array;
}

}  // namespace starring
