#include "worker/data/files/text_pieces.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/data/files/file_kind.h"

namespace starring {
namespace {

constexpr int64_t kPieceBytes = 256 << 10;  // fits the second-level cache
constexpr int64_t kPieceBytesMin = 64;
constexpr absl::string_view kUtf8Mark = "\xef\xbb\xbf", kUtf16Marks[] = {"\xff\xfe", "\xfe\xff"};

}  // namespace

// A short file gets a short buffer. One byte more than the file has lets the first read find the end.
TextPieces::TextPieces(ByteStream& stream, int64_t bytes_max)
    : stream_(stream),
      bytes_max_(static_cast<size_t>(bytes_max)),
      buffer_(static_cast<size_t>(
          std::min(bytes_max, std::clamp(stream.size_bytes_max() + 1, kPieceBytesMin, kPieceBytes)))) {
  CHECK_GE(bytes_max, 1);
}

void TextPieces::Consume(size_t bytes) {
  CHECK_LE(bytes, end_ - begin_);
  begin_ += bytes;
}

absl::StatusOr<TextPieces::Grown> TextPieces::Grow() {
  const size_t size = end_ - begin_;
  if (size == bytes_max_) return Grown::kFull;
  // The rest of a row moves to the front, and may overlap its old place.
  std::memmove(buffer_.data(), buffer_.data() + begin_, size);
  begin_ = 0;
  end_ = size;
  // A reader begins a row anew when it has more text. A read of at least half the buffer bounds how often it does so.
  if (size > buffer_.size() / 2) buffer_.resize(std::min(2 * buffer_.size(), bytes_max_));
  const auto room = std::span(buffer_).subspan(end_);
  ASSIGN_OR_RETURN(const int64_t bytes, stream_.Read({reinterpret_cast<uint8_t*>(room.data()), room.size()}));
  end_ += static_cast<size_t>(bytes);
  if (at_beginning_) {
    at_beginning_ = false;
    const absl::string_view first(buffer_.data(), end_);
    other_kind_ = RefuseOtherKind(stream_.path(), {reinterpret_cast<const uint8_t*>(buffer_.data()), end_});
    if (absl::StartsWith(first, kUtf16Marks[0]) || absl::StartsWith(first, kUtf16Marks[1])) {
      return absl::DataLossError(
          absl::StrCat(stream_.path(), " begins with the mark of UTF-16, expected UTF-8: save it as UTF-8"));
    }
    if (absl::StartsWith(first, kUtf8Mark)) begin_ += kUtf8Mark.size();
  }
  // `begin_` counts here, because a mark at the file's beginning is no text for the reader.
  return begin_ + size < end_ ? Grown::kMore : Grown::kEnd;
}

absl::Status TextPieces::Explain(const absl::Status& status) const {
  return status.ok() || other_kind_.ok() ? status : other_kind_;
}

}  // namespace starring
