#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/checkpoint/crc32c.h"
#include "worker/data/dataset_readers.h"
#include "worker/data/files/cell_text.h"
#include "worker/data/files/csv_rows.h"
#include "worker/data/files/data_memory.h"
#include "worker/data/files/file_stream.h"
#include "worker/data/files/text_pieces.h"
#include "worker/data/table_labels.h"

namespace starring {
namespace {

struct Pair {
  uint32_t column = 0;  // from 0 on
  float value = 0;
};

// A set as its file has it. The width is known only after both files.
struct SparseSet {
  std::vector<Pair> pairs;
  std::vector<int64_t> ends;  // by sample, of its pairs
  Dataset labelled;           // its labels or targets, and their number
  bool has_labels = true;     // as the first line
  int64_t width = 0;
};

// Takes the next word of `line` off it; empty at the end.
absl::string_view TakeWord(absl::string_view& line) {
  line = TrimCell(line);
  const absl::string_view word = line.substr(0, line.find_first_of(" \t"));
  line.remove_prefix(word.size());
  return word;
}

// `text` is one pair of a line, `width` the line's last index before it.
absl::StatusOr<Pair> ReadPair(absl::string_view text, int64_t width) {
  const size_t colon = text.find(':');
  const absl::string_view index_text = text.substr(0, colon);
  if (index_text == "qid") {
    return absl::DataLossError("found qid:, the groups of a ranking, which are not read: remove it from each line");
  }
  int64_t index = 0;
  if (colon == text.npos || !absl::SimpleAtoi(index_text, &index)) {
    return absl::DataLossError(absl::StrCat("expected INDEX:VALUE, found ", ShowCell(text)));
  }
  if (index < 1 || index > kColumnsMax) {
    return absl::DataLossError(
        absl::StrCat("expected an index from 1 to ", kColumnsMax, ", found ", index,
                     index == 0 ? ": add 1 to all indices, or write the file with zero_based=False" : ""));
  }
  // Ascending indices also exclude a pair that comes twice, whose second value would win without a word.
  if (index <= width) {
    return absl::DataLossError(absl::StrCat("expected an index above ", width, ", the one before it, found ", index,
                                            ": sort each line by index"));
  }
  // The cast is safe: the check above bounds the index by kColumnsMax.
  Pair pair{.column = static_cast<uint32_t>(index - 1)};
  const absl::string_view value = text.substr(colon + 1);
  const CellKind kind = ReadCell(value, pair.value);
  if (kind != CellKind::kNumber) {
    return absl::DataLossError(absl::StrCat("expected a finite number of float32 at index ", index, ", found ",
                                            ShowCell(value), ": replace it, or leave the pair out for 0"));
  }
  return pair;
}

// Takes the label off the line, if the file has labels.
absl::Status ReadLabel(const std::string& path, const TableFiles& files, absl::string_view& line, TableLabels& labels,
                       SparseSet& set) {
  const absl::string_view whole = line;
  const absl::string_view label_text = TakeWord(line);
  const bool is_pair = absl::StrContains(label_text, ':');
  // The first sample decides for the file: a line that begins with a pair has no label.
  if (files.may_lack_labels && set.labelled.count == 0) set.has_labels = !is_pair;
  // The first word is a pair of the sample, so it goes back onto the line.
  if (!set.has_labels && is_pair) {
    ++set.labelled.count;
    line = whole;
    return absl::OkStatus();
  }
  if (!set.has_labels) {
    return absl::DataLossError(absl::StrCat("expected a pair, as the first line begins with one, found ",
                                            ShowCell(label_text), ": write labels into all lines or none"));
  }
  if (is_pair) {
    return absl::DataLossError(absl::StrCat("expected a label, found the pair ", ShowCell(label_text)));
  }
  if (absl::StrContains(label_text, ',')) {
    return absl::DataLossError(
        absl::StrCat("expected one label, found ", ShowCell(label_text), ": lists of labels are not read"));
  }
  return labels.Append(path, label_text, set.labelled);
}

absl::Status ReadSample(const std::string& path, const TableFiles& files, absl::string_view line, TableLabels& labels,
                        SparseSet& set) {
  RETURN_IF_ERROR(ReadLabel(path, files, line, labels, set));
  int64_t width = 0;
  for (absl::string_view word = TakeWord(line); !word.empty(); word = TakeWord(line)) {
    ASSIGN_OR_RETURN(const Pair pair, ReadPair(word, width));
    RETURN_IF_ERROR(MakeRoom(path, 1, set.pairs));
    set.pairs.push_back(pair);
    width = int64_t{pair.column} + 1;
  }
  set.width = std::max(set.width, width);
  RETURN_IF_ERROR(MakeRoom(path, 1, set.ends));
  set.ends.push_back(std::ssize(set.pairs));
  return absl::OkStatus();
}

absl::Status TooLarge(const std::string& path, const TableFiles& files, int64_t count, int64_t width) {
  return absl::DataLossError(absl::StrCat(path, " has ", count, " samples with indices up to ", width,
                                          ", which are more than the limits of ", kDatasetImagesMax, " samples and ",
                                          files.bytes_max, " bytes of float32 with all zeros: use fewer"));
}

// The next line without its end and its comment; nothing at the end of the file.
absl::StatusOr<bool> TakeLine(const std::string& path, int64_t number, TextPieces& pieces, absl::string_view& line,
                              size_t& line_bytes) {
  for (size_t searched = 0;;) {
    const absl::string_view text(pieces.text().data(), pieces.text().size());
    const size_t end = text.find('\n', searched);
    TextPieces::Grown grown = TextPieces::Grown::kMore;
    if (end == text.npos) {
      // Text without a line end is searched once, so that a long line costs linear time.
      searched = text.size();
      ASSIGN_OR_RETURN(grown, pieces.Grow());
    }
    if (grown == TextPieces::Grown::kFull) {
      return absl::DataLossError(absl::StrCat(path, ", line ", number, ": found more than ", kTableRowBytesMax,
                                              " bytes, the limit of a line"));
    }
    if (end == text.npos && grown == TextPieces::Grown::kMore) continue;
    // At the end of the file the text may have moved.
    line = absl::string_view(pieces.text().data(), std::min(end, pieces.text().size()));
    line_bytes = line.size() + (end == text.npos ? 0 : 1);
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    return line_bytes > 0;
  }
}

absl::Status ReadLines(const std::string& path, const TableFiles& files, TextPieces& pieces, TableLabels& labels,
                       SparseSet& set) {
  int64_t empty_line = 0;
  absl::string_view line;
  size_t line_bytes = 0;
  for (int64_t number = 1;; ++number) {
    ASSIGN_OR_RETURN(const bool any, TakeLine(path, number, pieces, line, line_bytes));
    if (!any) break;
    // A line that is a comment alone is neither a sample nor an empty line.
    const absl::string_view sample = TrimCell(line.substr(0, line.find('#')));
    if (TrimCell(line).empty()) {
      if (empty_line == 0) empty_line = number;
      // Without a label a sample of zeros may be meant. Left out, it would move the predictions of those after it.
      if (!set.has_labels) {
        return absl::DataLossError(absl::StrCat(path, ", line ", number, ": found an empty line, expected a sample: ",
                                                "write 1:0 for one of zeros, or remove the line"));
      }
    } else if (empty_line > 0) {
      return absl::DataLossError(absl::StrCat(path, ", line ", empty_line, ": found an empty line before line ", number,
                                              ", expected a sample: remove the empty line"));
    } else if (!sample.empty()) {
      RETURN_IF_ERROR(ReadSample(path, files, sample, labels, set), path, ", line ", number);
      // A pair becomes one float at least.
      if (std::ssize(set.pairs) > files.bytes_max / static_cast<int64_t>(sizeof(float)) ||
          set.labelled.count > kDatasetImagesMax) {
        return TooLarge(path, files, set.labelled.count, set.width);
      }
    }
    pieces.Consume(line_bytes);
  }
  if (set.labelled.count == 0)
    return absl::DataLossError(absl::StrCat(path, " has no samples: expected one line or more"));
  return absl::OkStatus();
}

absl::StatusOr<SparseSet> ReadSparse(const std::string& path, const TableFiles& files, TableLabels& labels) {
  ASSIGN_OR_RETURN(const std::unique_ptr<FileStream> stream, FileStream::Open(path));
  TextPieces pieces(*stream, kTableRowBytesMax);
  SparseSet set;
  RETURN_IF_ERROR(pieces.Explain(ReadLines(path, files, pieces, labels, set)));
  return set;
}

absl::StatusOr<Dataset> Dense(const std::string& path, const TableFiles& files, SparseSet sparse, int64_t width) {
  Dataset set = std::move(sparse.labelled);
  set.type = FieldType::kNumbers;
  set.height = set.width = 1;
  set.channels = width;
  // The product does not overflow: a set has fewer than 2^32 samples of at most 2^16 floats.
  const int64_t bytes = set.count * set.image_bytes();
  if (bytes > files.bytes_max) return TooLarge(path, files, set.count, width);
  RETURN_IF_ERROR(CheckDataFits(path, bytes));
  set.images.reserve(static_cast<size_t>(bytes));
  std::vector<float> row(static_cast<size_t>(width));
  auto pair = sparse.pairs.begin();
  for (const int64_t end : sparse.ends) {
    std::ranges::fill(row, 0.0f);
    for (; pair != sparse.pairs.begin() + end; ++pair) row[pair->column] = pair->value;
    const std::span<const std::byte> row_bytes = std::as_bytes(std::span(row));
    const auto* const first = reinterpret_cast<const uint8_t*>(row_bytes.data());
    set.images.insert(set.images.end(), first, first + row_bytes.size());
    set.images_crc32c = ExtendCrc32c(set.images_crc32c, row_bytes);
  }
  return set;
}

}  // namespace

absl::StatusOr<TrainAndTest> ReadLibsvm(const TableFiles& files) {
  TableLabels labels({.numbers = files.numbers, .may_be_rare = files.may_lack_labels || files.labels_may_be_rare});
  SparseSet train, test;
  ASSIGN_OR_RETURN(train, ReadSparse(files.train, files, labels));
  if (!files.test.empty()) {
    ASSIGN_OR_RETURN(test, ReadSparse(files.test, files, labels));
  }
  // An index that only one file uses is a column of both. A model may know columns that neither file uses.
  const int64_t width = std::max({train.width, test.width, files.columns_min});
  if (width == 0)
    return absl::DataLossError(absl::StrCat(files.train, " has labels alone: expected INDEX:VALUE pairs"));
  TrainAndTest sets;
  const bool has_labels = train.has_labels;
  ASSIGN_OR_RETURN(sets.train, Dense(files.train, files, std::move(train), width));
  if (!files.test.empty()) {
    ASSIGN_OR_RETURN(sets.test, Dense(files.test, files, std::move(test), width));
  }
  if (has_labels) {
    RETURN_IF_ERROR(labels.Finish(sets), files.train);
  } else {
    LeaveLabelsOut(sets.train);
  }
  return sets;
}

}  // namespace starring
