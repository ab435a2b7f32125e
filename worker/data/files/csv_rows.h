// The rows of a CSV file (RFC 4180): cells separated by commas, lines that end with LF or CRLF, quotes around cells
// that hold commas, line ends or doubled quotes. The last line may have no end.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_DATA_FILES_CSV_ROWS_H_
#define STARRING_WORKER_DATA_FILES_CSV_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/files/byte_stream.h"
#include "worker/data/files/text_pieces.h"

namespace starring {

// A cell is a number or a label. Longer ones are the rest of a file after a quote without its partner.
inline constexpr int64_t kCellBytesMax = 64 << 10;
// As many columns as a sample may have, with numbers of 60 characters.
inline constexpr int64_t kTableRowBytesMax = 4 << 20;

class CsvRows {
 public:
  // REQUIRES: `stream` outlives this object.
  explicit CsvRows(ByteStream& stream);

  // Writes the cells of the next row to `cells`, without their quotes; false at the end of the file. An empty line has
  // no cells. The cells are valid until the next call. DataLoss names file, line and column, what was expected and what
  // was found.
  absl::StatusOr<bool> Next(std::vector<absl::string_view>& cells);

  // The line on which the last row begins, from 1 on. A cell in quotes may span several lines.
  int64_t line() const { return line_; }

  // As TextPieces::Explain.
  absl::Status Explain(const absl::Status& status) const { return pieces_.Explain(status); }

 private:
  struct Cell {
    size_t begin, end;  // in text_, without quotes
    bool has_quotes;    // doubled ones
  };

  // Finds the cells of the first row of text_; false if more text is needed for it, which cannot be if the file has
  // `ended`.
  absl::StatusOr<bool> FindCells(bool ended);
  // Finds the end of the cell whose opening quote is before cell.begin; false if more text is needed. A quote at the
  // end of the text counts as the closing one, but may be the first of two.
  absl::StatusOr<bool> FindClosingQuote(bool ended, Cell& cell) const;
  // The line end at `at`: its length, or 0 if more text is needed.
  absl::StatusOr<size_t> LineEndBytes(size_t at, bool ended) const;
  // `column` counts from 0 here.
  absl::Status Error(size_t column, absl::string_view what) const;

  ByteStream& stream_;
  TextPieces pieces_;
  absl::string_view text_;
  std::vector<Cell> found_;
  size_t row_bytes_ = 0;  // of the last row, with its line end
  int64_t row_lines_ = 1;
  int64_t line_ = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_CSV_ROWS_H_
