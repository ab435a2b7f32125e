#include "server/elastic/record_file.h"

#include <google/protobuf/message_lite.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/checkpoint/crc32c.h"

namespace starring {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

struct RecordHead {
  uint32_t length = 0;
  uint32_t crc = 0;
  uint32_t head_crc = 0;
};

absl::string_view BytesOf(const RecordHead& head) { return {reinterpret_cast<const char*>(&head), sizeof(head)}; }

uint32_t CrcOf(const RecordHead& head) { return Crc32c(BytesOf(head).substr(0, offsetof(RecordHead, head_crc))); }

// A machine that loses its power may leave zeros where something was to be written.
bool IsUnwritten(absl::string_view bytes) { return bytes.find_first_not_of('\0') == bytes.npos; }

}  // namespace

absl::StatusOr<absl::string_view> AfterFirstLine(absl::string_view bytes, const FileFormat& format) {
  if (absl::ConsumePrefix(&bytes, format.line)) return bytes;
  // The process may have died while it wrote this line.
  if (absl::StartsWith(format.line, bytes) || IsUnwritten(bytes)) return "";
  const std::string found =
      absl::StrCat("it begins with \"", absl::CHexEscape(bytes.substr(0, format.line.size())),
                   "\", this program reads and writes \"", absl::StripSuffix(format.line, "\n"), "\"");
  // The name ends before the version's number, so files of all versions have it.
  const absl::string_view name = format.line.substr(0, format.line.rfind('-') + 1);
  if (!absl::StartsWith(bytes, name) && !absl::StartsWith(bytes, format.first_version)) {
    return absl::DataLossError(found);
  }
  return absl::InvalidArgumentError(absl::StrCat("another version has written it: ", found,
                                                 ": start a new run with an "
                                                 "empty --state_dir, or go on with the program that has written it"));
}

std::string ToRecord(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  CHECK_LE(bytes.size(), kRecordBytesMax);
  RecordHead head{.length = static_cast<uint32_t>(bytes.size()), .crc = Crc32c(bytes)};
  head.head_crc = CrcOf(head);
  return absl::StrCat(BytesOf(head), bytes);
}

absl::StatusOr<bool> TakeRecord(absl::string_view& rest, google::protobuf::MessageLite& message) {
  RecordHead head;
  if (rest.size() < sizeof(head) || IsUnwritten(rest)) return false;
  std::memcpy(&head, rest.data(), sizeof(head));
  // Looked at before the length is used: with a wrong one the record would seem to be cut off, and be removed.
  if (CrcOf(head) != head.head_crc) return absl::DataLossError("the checksum of its length is wrong");
  if (head.length > kRecordBytesMax) {
    return absl::DataLossError(absl::StrCat("it announces ", head.length, " bytes, at most ", kRecordBytesMax));
  }
  // The end of the record is missing: a crash cut it off, and that is no damage.
  if (rest.size() - sizeof(head) < head.length) return false;
  const absl::string_view bytes = rest.substr(sizeof(head), head.length);
  if (Crc32c(bytes) != head.crc) return absl::DataLossError("its checksum is wrong");
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("it is no message of this type");
  }
  rest.remove_prefix(sizeof(head) + bytes.size());
  return true;
}

}  // namespace starring
