// The content of a file, or of a part of one, from front to back.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_DATA_FILES_BYTE_STREAM_H_
#define STARRING_WORKER_DATA_FILES_BYTE_STREAM_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/files/mapped_file.h"

namespace starring {

// Deflate needs at least two bits for 258 bytes; see zlib's technical notes.
inline constexpr int64_t kDeflateRatioMax = 1032;

// The part of a file from `offset` on.
struct MappedRest {
  std::shared_ptr<const MappedFile> file;
  int64_t offset = 0;
};

class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Fills `out` unless the data ends first, and returns the number of bytes written. Fewer than out.size() means that
  // the data was read to its end and, if it was compressed, that its checksum and length are right. DataLoss, naming
  // the file, if compressed data is damaged or ends early.
  virtual absl::StatusOr<int64_t> Read(std::span<uint8_t> out) = 0;

  // An upper bound of the bytes that Read can return in all: the size of the data in the file, or kDeflateRatioMax
  // times that if it is compressed. A reader refuses a header that promises more before it allocates.
  virtual int64_t size_bytes_max() const = 0;

  // The data that Read would return from here on, if it is so in the file; without a file if it is not. The errors are
  // those of MappedFile::Map.
  virtual absl::StatusOr<MappedRest> MapRest() const { return MappedRest(); }

  // For messages: the file's path, and behind a colon what of the file it is.
  virtual const std::string& path() const = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_BYTE_STREAM_H_
