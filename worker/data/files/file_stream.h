// Reads a file from front to back, and unzips it if it begins with gzip's magic number, whatever its name.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_DATA_FILES_FILE_STREAM_H_
#define STARRING_WORKER_DATA_FILES_FILE_STREAM_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/files/byte_stream.h"

namespace starring {

class FileStream final : public ByteStream {
 public:
  // NotFound if there is no such file; another code with the system's text if it cannot be read; InvalidArgument if it
  // is not a regular file (opening a pipe could wait for ever).
  static absl::StatusOr<std::unique_ptr<FileStream>> Open(const std::string& path);
  ~FileStream() override;

  absl::StatusOr<int64_t> Read(std::span<uint8_t> out) override;
  int64_t size_bytes_max() const override;
  absl::StatusOr<MappedRest> MapRest() const override;
  const std::string& path() const override { return path_; }

 private:
  struct Inflater;

  FileStream(std::string path, int descriptor, int64_t file_bytes);
  absl::Status FillInput();
  absl::StatusOr<int64_t> ReadPlain(std::span<uint8_t> out);
  absl::StatusOr<int64_t> ReadGzip(std::span<uint8_t> out);
  // Leaves out zero bytes after gzip data, and warns if the file ends with them.
  absl::Status SkipZeros();

  std::string path_;
  int descriptor_;
  int64_t file_bytes_;
  std::vector<uint8_t> buffer_;  // [input_begin_, input_end_) was read from the file and not consumed yet
  int64_t consumed_ = 0;         // of a plain file
  size_t input_begin_ = 0;
  size_t input_end_ = 0;
  std::unique_ptr<Inflater> inflater_;  // null for a plain file
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_FILE_STREAM_H_
