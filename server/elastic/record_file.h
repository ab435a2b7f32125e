// The files in an elastic run's --state_dir. A file begins with a line that names its format and version. Records
// follow. A record is
//
//   4 bytes  the length of its message, little-endian as all numbers
//   4 bytes  the CRC-32C of the message
//   4 bytes  the CRC-32C of these 8 bytes: otherwise a damaged length would look like a record that was cut off
//            the message, in protobuf's encoding
//
// Thread safety: pure functions.
#ifndef STARRING_SERVER_ELASTIC_RECORD_FILE_H_
#define STARRING_SERVER_ELASTIC_RECORD_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class MessageLite;
}  // namespace google::protobuf

namespace starring {

// A message's. The longest one has the ids of kMicroBatchesMax workers, the owner of each leaf, and a count of each of
// kShardCountMax shards: 13 KiB.
inline constexpr size_t kRecordBytesMax = 64 << 10;

// The first line of a file, "NAME-VERSION" and a newline, and how a file of version 1, which was text, begins.
struct FileFormat {
  absl::string_view line;
  absl::string_view first_version;
};

// The rest of a file's `bytes`, after the first line. Empty if the line was cut off. InvalidArgument, with both
// versions and the way out, if the file is of another version; DataLoss if it is no such file.
absl::StatusOr<absl::string_view> AfterFirstLine(absl::string_view bytes, const FileFormat& format);

// REQUIRES: the message has at most kRecordBytesMax.
std::string ToRecord(const google::protobuf::MessageLite& message);

// Reads the first record of `rest`, and takes it off. False: `rest` has no whole record. DataLoss if it is
// damaged, longer than kRecordBytesMax, or no message of this type.
absl::StatusOr<bool> TakeRecord(absl::string_view& rest, google::protobuf::MessageLite& message);

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_RECORD_FILE_H_
