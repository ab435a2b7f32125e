// The text of a file, piece by piece, for readers of rows: a reader looks at the text that is there, asks for more
// until a row is whole, and consumes the row. So a file of any length takes the memory of its longest row.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_DATA_FILES_TEXT_PIECES_H_
#define STARRING_WORKER_DATA_FILES_TEXT_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/files/byte_stream.h"

namespace starring {

class TextPieces {
 public:
  // REQUIRES: `stream` outlives this object; bytes_max >= 1.
  TextPieces(ByteStream& stream, int64_t bytes_max);

  // The text that was read and not consumed. A reader may change a row in place before it consumes the row. Valid until
  // the next call of Grow.
  std::span<char> text() { return std::span(buffer_).subspan(begin_, end_ - begin_); }
  // REQUIRES: bytes <= text().size().
  void Consume(size_t bytes);

  // kMore: text() has become longer. kEnd: the file has no more. kFull: text() has bytes_max bytes already.
  enum class Grown { kMore, kEnd, kFull };
  // A mark of UTF-8 at the beginning of the file is left out. DataLoss for the mark of UTF-16, and what the stream's
  // Read refuses.
  absl::StatusOr<Grown> Grow();

  // `status`, the refusal of a row; if the file's beginning is that of another kind of file (file_kind.h), that
  // instead.
  absl::Status Explain(const absl::Status& status) const;

 private:
  ByteStream& stream_;
  size_t bytes_max_;
  std::vector<char> buffer_;  // [begin_, end_) is the text
  size_t begin_ = 0;
  size_t end_ = 0;
  bool at_beginning_ = true;
  absl::Status other_kind_;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_TEXT_PIECES_H_
