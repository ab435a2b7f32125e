// A zip archive, as numpy.savez and numpy.savez_compressed write it: members that are stored or deflated, of any size.
// Source: PKWARE's APPNOTE 6.3.10, sections 4.3 (structure) and 4.5.3 (zip64).
//
// The directory at the archive's end says where the members are; nothing else is believed. No name of a member is used
// as a path.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_DATA_FILES_ZIP_FILE_H_
#define STARRING_WORKER_DATA_FILES_ZIP_FILE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/files/byte_stream.h"

namespace starring {

class ZipFile {
 public:
  // As FileStream::Open; DataLoss, naming the file, for what is no zip archive, for one in several parts, and for a
  // directory that is damaged or larger than common/base/limits.h allows.
  static absl::StatusOr<std::unique_ptr<ZipFile>> Open(const std::string& path);
  ~ZipFile();
  ZipFile(const ZipFile&) = delete;
  ZipFile& operator=(const ZipFile&) = delete;

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;  // in the order of the directory
  bool Has(absl::string_view name) const { return Find(name) != nullptr; }

  // The content of a member, which is checked against the directory's length and checksum when it has been read to its
  // end. NotFound without such a member; DataLoss, naming file and member, if it is encrypted, compressed by another
  // method than deflate, or not inside the file. The archive outlives the stream.
  absl::StatusOr<std::unique_ptr<ByteStream>> OpenMember(absl::string_view name) const;

 private:
  class Stored;
  class Deflated;
  struct Member {
    std::string name;
    uint16_t flags = 0, method = 0;
    uint32_t crc32 = 0;
    int64_t packed_bytes = 0, bytes = 0;
    int64_t header = 0;  // where its local header is
  };

  ZipFile(std::string path, int descriptor, int64_t file_bytes)
      : path_(std::move(path)), descriptor_(descriptor), file_bytes_(file_bytes) {}
  absl::Status Damaged(absl::string_view what) const;
  // All of `out` from the file's byte `offset` on.
  absl::Status ReadAt(int64_t offset, std::span<uint8_t> out) const;
  absl::Status ReadDirectory();
  absl::Status ReadEntries(std::span<const uint8_t> directory, int64_t count);
  const Member* Find(absl::string_view name) const;

  const std::string path_;
  const int descriptor_;
  const int64_t file_bytes_;
  std::vector<Member> members_;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_ZIP_FILE_H_
