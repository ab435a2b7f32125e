#include "worker/data/files/csv_rows.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/data/files/cell_text.h"

namespace starring {
namespace {

// The label has a column of its own.
constexpr size_t kCellsMax = kColumnsMax + 1;

// The end of the plain cell that has begun at `at` or before: a comma, a line end or a quote, or the text's end.
size_t FindPlainEnd(absl::string_view text, size_t at) {
  for (; at < text.size(); ++at) {
    const char c = text[at];
    // Nearly all characters of a number are beyond the comma, and need one comparison.
    if (static_cast<unsigned char>(c) > ',') continue;
    if (c == ',' || c == '\n' || c == '\r' || c == '"') break;
  }
  return at;
}

// Makes doubled quotes single ones, in place, and returns the number of characters that are left.
size_t RemoveDoubledQuotes(std::span<char> cell) {
  size_t written = 0;
  for (size_t i = 0; i < cell.size(); ++i) {
    cell[written++] = cell[i];
    if (cell[i] == '"') ++i;
  }
  return written;
}

}  // namespace

CsvRows::CsvRows(ByteStream& stream) : stream_(stream), pieces_(stream, kTableRowBytesMax) {}

absl::StatusOr<bool> CsvRows::Next(std::vector<absl::string_view>& cells) {
  pieces_.Consume(row_bytes_);
  row_bytes_ = 0;
  line_ += row_lines_;
  for (bool ended = false;;) {
    const std::span<char> text = pieces_.text();
    text_ = absl::string_view(text.data(), text.size());
    if (!text_.empty()) {
      ASSIGN_OR_RETURN(const bool whole, FindCells(ended));
      if (whole) break;
    } else if (ended) {
      row_lines_ = 0;
      return false;
    }
    ASSIGN_OR_RETURN(const TextPieces::Grown grown, pieces_.Grow());
    if (grown == TextPieces::Grown::kFull) {
      return absl::DataLossError(absl::StrCat(stream_.path(), ", line ", line_, ": found a row of more than ",
                                              kTableRowBytesMax, " bytes, the limit: does the file have line ends?"));
    }
    ended = grown == TextPieces::Grown::kEnd;
  }
  cells.clear();
  for (const Cell& cell : found_) {
    size_t bytes = cell.end - cell.begin;
    // Only a whole row is changed. FindCells reads a row that is not whole from its beginning again.
    if (cell.has_quotes) bytes = RemoveDoubledQuotes(pieces_.text().subspan(cell.begin, bytes));
    cells.push_back(text_.substr(cell.begin, bytes));
  }
  return true;
}

absl::StatusOr<bool> CsvRows::FindCells(bool ended) {
  found_.clear();
  bool any_quoted = false;
  for (size_t at = 0;;) {
    if (found_.size() == kCellsMax) {
      return absl::DataLossError(absl::StrCat(stream_.path(), ", line ", line_, ": found more than ", kCellsMax,
                                              " cells, the limit of a row"));
    }
    Cell cell{.begin = at, .end = at, .has_quotes = false};
    const bool quoted = at < text_.size() && text_[at] == '"';
    if (quoted) {
      any_quoted = true;
      ++cell.begin;
      ASSIGN_OR_RETURN(const bool closed, FindClosingQuote(ended, cell));
      if (!closed) return false;
      at = cell.end + 1;
    } else {
      at = cell.end = FindPlainEnd(text_, at);
    }
    if (static_cast<int64_t>(cell.end - cell.begin) > kCellBytesMax) {
      return Error(found_.size(), absl::StrCat("found a cell of more than ", kCellBytesMax, " bytes, the limit"));
    }
    // The cell may go on in text that has not been read.
    if (at == text_.size() && !ended) return false;
    found_.push_back(cell);
    if (at < text_.size() && text_[at] == ',') {
      ++at;
      continue;
    }
    row_bytes_ = at;
    if (at < text_.size()) {
      ASSIGN_OR_RETURN(const size_t line_end, LineEndBytes(at, ended));
      if (line_end == 0) return false;
      row_bytes_ += line_end;
    }
    // An empty line has no cells. A line of two quotes has one cell, which is empty.
    if (found_.size() == 1 && !quoted && cell.begin == cell.end) found_.clear();
    // Only quotes can hold line ends, so most rows are not searched for them.
    row_lines_ = any_quoted ? std::count(text_.begin(), text_.begin() + static_cast<int64_t>(row_bytes_), '\n') : 1;
    return true;
  }
}

absl::StatusOr<bool> CsvRows::FindClosingQuote(bool ended, Cell& cell) const {
  for (size_t at = cell.begin;; at += 2) {
    at = text_.find('"', at);
    if (at == text_.npos) {
      const auto bytes = static_cast<int64_t>(text_.size() - cell.begin);
      if (!ended && bytes <= kCellBytesMax) return false;
      return Error(found_.size(),
                   absl::StrCat("expected a closing quote, found ", ended ? "the end of the file" : "none within ",
                                ended ? "" : absl::StrCat(kCellBytesMax, " bytes"), " after ",
                                ShowCell(text_.substr(cell.begin)), ": close the quote"));
    }
    // The next character decides whether a quote is the first of two. At the text's end FindCells asks for more.
    if (at + 1 == text_.size() || text_[at + 1] != '"') {
      cell.end = at;
      return true;
    }
    cell.has_quotes = true;
  }
}

absl::StatusOr<size_t> CsvRows::LineEndBytes(size_t at, bool ended) const {
  if (text_[at] == '\n') return 1;
  if (text_[at] == '\r') {
    if (at + 1 < text_.size() && text_[at + 1] == '\n') return 2;
    // The LF may be the next byte that is read.
    if (at + 1 == text_.size() && !ended) return 0;
    return Error(found_.size() - 1,
                 "expected lines that end with LF or CRLF, found CR alone: save the file with line ends of Unix");
  }
  if (text_[at] == '"') {
    return Error(found_.size() - 1, absl::StrCat("expected quotes around the whole cell, found one inside: ",
                                                 ShowCell(text_.substr(found_.back().begin)),
                                                 ": write the cell in quotes, with each quote inside doubled"));
  }
  return Error(found_.size() - 1, absl::StrCat("expected a comma or a line's end after the closing quote, found ",
                                               ShowCell(text_.substr(at)), ": double each quote inside a cell"));
}

absl::Status CsvRows::Error(size_t column, absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(stream_.path(), ", line ", line_, ", column ", column + 1, ": ", what));
}

}  // namespace starring
