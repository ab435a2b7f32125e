#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/checkpoint/crc32c.h"
#include "common/host/log.h"
#include "worker/data/dataset_readers.h"
#include "worker/data/files/cell_text.h"
#include "worker/data/files/csv_rows.h"
#include "worker/data/files/data_memory.h"
#include "worker/data/files/file_stream.h"
#include "worker/data/table_labels.h"

namespace starring {
namespace {

using Cells = std::vector<absl::string_view>;

constexpr size_t kColumnsShown = 10;
constexpr size_t kNoLabel = std::numeric_limits<size_t>::max();
constexpr absl::string_view kLabelNames[] = {"label", "target", "class", "y"};

// The columns of both files: those of the training file.
struct Columns {
  std::vector<std::string> names;     // empty: there is no header
  size_t count = 0;                   // 0: not known yet
  size_t label = 0;                   // kNoLabel: the files have no labels
  bool header_may_be_sample = false;  // the header has a label's text beside cells that are no names
};

// "a", "b", "c" and 4 more
template <class Texts>
std::string ShowFirst(const Texts& texts) {
  const size_t shown = std::min(texts.size(), kColumnsShown);
  return absl::StrCat(absl::StrJoin(texts.begin(), texts.begin() + static_cast<int64_t>(shown), ", ",
                                    [](std::string* out, const auto& text) { out->append(ShowCell(text)); }),
                      texts.size() > shown ? absl::StrCat(" and ", texts.size() - shown, " more") : "");
}

CellKind KindOf(absl::string_view cell) {
  float unused = 0;
  return ReadCell(TrimCell(cell), unused);
}

bool IsText(absl::string_view cell) { return KindOf(cell) == CellKind::kText; }

// Finds the column of labels by name, or by number; by one of the usual names if `wanted` is empty. A file that has as
// many columns as the model is without, unless the name was given: a number would mean another column than in training.
absl::StatusOr<size_t> FindLabel(const std::string& path, const TableFiles& files, const Cells& first,
                                 const std::vector<std::string>& names) {
  const std::string& wanted = files.label;
  std::vector<size_t> found;
  for (size_t i = 0; i < names.size(); ++i) {
    const bool is_label = wanted.empty() ? std::ranges::count(kLabelNames, names[i]) > 0 : names[i] == wanted;
    if (is_label) found.push_back(i);
  }
  // A name goes before a number: a header may call another column "3".
  const bool is_named = found.size() == 1 && !wanted.empty();
  if (!is_named && files.may_lack_labels && std::ssize(first) == files.columns_min) {
    Log(absl::StrCat(path, " is read as samples without labels: it has the model's ", first.size(), " columns"));
    return kNoLabel;
  }
  if (found.size() == 1) return found[0];
  if (size_t number = 0; found.empty() && absl::SimpleAtoi(wanted, &number) && number >= 1 && number <= first.size()) {
    return number - 1;
  }
  const std::string columns = names.empty() ? absl::StrCat("no header, and the first line ", ShowFirst(first))
                                            : absl::StrCat("the columns ", ShowFirst(names));
  const std::string why =
      wanted.empty() ? absl::StrCat(found.size(),
                                    " columns called label, target, class or y, expected one: give "
                                    "--csv_label=NAME|NUMBER, with numbers from 1 on")
                     : absl::StrCat(found.size(), " columns called ", ShowCell(wanted),
                                    ", expected one: --csv_label needs a name, or a number from 1 to ", first.size());
  const std::string without =
      files.may_lack_labels && files.columns_min > 0
          ? absl::StrCat("; a file without labels has the ", files.columns_min, " columns of the model")
          : "";
  return absl::InvalidArgumentError(absl::StrCat(path, " has ", why, "; it has ", columns, without));
}

// A first row that would be read otherwise than it is meant, without a word.
absl::Status CheckHeader(const std::string& path, const Cells& cells, bool has_header) {
  constexpr size_t kCountedMin = 4;  // fewer numbers may be a sample's
  for (size_t i = 0; has_header && i < cells.size(); ++i) {
    if (!TrimCell(cells[i]).empty()) continue;
    return absl::DataLossError(absl::StrCat(path, ", line 1, column ", i + 1,
                                            ": expected a name, found an empty cell: name the column, or leave it out "
                                            "(pandas writes row numbers there: to_csv(..., index=False))"));
  }
  for (const size_t first : {0u, 1u}) {
    size_t counted = 0;
    while (counted < cells.size() && TrimCell(cells[counted]) == absl::StrCat(first + counted)) ++counted;
    if (has_header || counted < cells.size() || counted < kCountedMin) continue;
    return absl::DataLossError(absl::StrCat(path, ", line 1: found ", first, ", ", first + 1,
                                            ", ... to the last column, expected names or a sample: give the columns "
                                            "names, or leave the line out (pandas: header=False)"));
  }
  return absl::OkStatus();
}

// Learns the columns from the first row of the training file, and compares them with that of the test file. True if the
// row is a header.
absl::StatusOr<bool> TakeFirstRow(const std::string& path, const TableFiles& files, const Cells& cells,
                                  Columns& columns) {
  std::vector<std::string> names;
  // An empty cell and nan are missing numbers, and no names.
  const bool has_header = std::ranges::any_of(cells, IsText);
  if (has_header) {
    for (const absl::string_view cell : cells) names.emplace_back(TrimCell(cell));
  }
  RETURN_IF_ERROR(CheckHeader(path, cells, has_header));
  if (columns.count > 0) {
    if (names == columns.names) return has_header;
    const auto show = [](const std::vector<std::string>& all) {
      return all.empty() ? std::string("none") : ShowFirst(all);
    };
    // The first difference may be far from the beginning.
    const auto differ = std::ranges::mismatch(names, columns.names);
    return absl::DataLossError(absl::StrCat(path, ", line 1: expected the header of ", files.train, ", ",
                                            show({differ.in2, columns.names.end()}), ", found ",
                                            show({differ.in1, names.end()}), " from column ",
                                            differ.in1 - names.begin() + 1, " on: write the same columns into both"));
  }
  // A line of one cell often has semicolons or tabs in the place of commas.
  if (cells.size() < 2 && !(files.may_lack_labels && files.columns_min == 1)) {
    return absl::DataLossError(absl::StrCat(path,
                                            ", line 1: expected a label and one column of numbers or more, with "
                                            "commas between them, found one cell: ",
                                            ShowCell(cells[0])));
  }
  ASSIGN_OR_RETURN(columns.label, FindLabel(path, files, cells, names));
  columns.count = cells.size();
  columns.names = std::move(names);
  columns.header_may_be_sample =
      columns.label != kNoLabel && IsText(cells[columns.label]) && !std::ranges::all_of(cells, IsText);
  return has_header;
}

// "PATH, line 7, column 2 (petal width)"
std::string Place(const std::string& path, int64_t line, size_t column, const Columns& columns) {
  return absl::StrCat(path, ", line ", line, ", column ", column + 1,
                      columns.names.empty() ? "" : absl::StrCat(" (", ShowCell(columns.names[column]), ")"));
}

absl::string_view WayOut(CellKind kind) {
  switch (kind) {
    case CellKind::kEmpty:
      return ", which is an empty cell: fill it, or leave out the row";
    case CellKind::kNotFinite:
      return ", which is not finite: replace it, or leave out the row";
    case CellKind::kTooLarge:
      return ", which is beyond float32, 3.4e38: scale the column";
    default:
      return ": write numbers, or leave out the column";
  }
}

// The row of the samples' numbers without the label.
absl::Status ReadNumbers(const std::string& path, int64_t line, const Cells& cells, const Columns& columns,
                         std::vector<float>& row) {
  // The caller's vector keeps its memory, so a row after the first allocates nothing.
  row.clear();
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i == columns.label) continue;
    const absl::string_view cell = TrimCell(cells[i]);
    float value = 0;
    if (const CellKind kind = ReadCell(cell, value); kind != CellKind::kNumber) {
      return absl::DataLossError(
          absl::StrCat(Place(path, line, i, columns), ": expected a number, found ", ShowCell(cell), WayOut(kind)));
    }
    row.push_back(value);
  }
  return absl::OkStatus();
}

absl::Status AppendSample(const std::string& path, const TableFiles& files, const std::vector<float>& row,
                          Dataset& set) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(row));
  // The caller counts the row later, with its label, so the limit is reached at equality.
  if (std::ssize(set.images) + std::ssize(bytes) > files.bytes_max || set.count == kDatasetImagesMax) {
    return absl::DataLossError(absl::StrCat(path, " has more samples than the limits of ", kDatasetImagesMax,
                                            " samples and ", files.bytes_max, " bytes of float32: use fewer"));
  }
  RETURN_IF_ERROR(MakeRoom(path, std::ssize(bytes), set.images));
  const auto* const first = reinterpret_cast<const uint8_t*>(bytes.data());
  set.images.insert(set.images.end(), first, first + bytes.size());
  set.images_crc32c = ExtendCrc32c(set.images_crc32c, bytes);
  return absl::OkStatus();
}

absl::Status ReadRows(const std::string& path, const TableFiles& files, CsvRows& rows, Columns& columns,
                      TableLabels& labels, Dataset& set) {
  Cells cells;
  std::vector<float> row;
  int64_t empty_line = 0;
  for (bool first = true;; first = false) {
    ASSIGN_OR_RETURN(const bool any, rows.Next(cells));
    if (!any) break;
    if (cells.empty()) {
      // Editors leave empty lines at a file's end, which are no error. Only a row after one tells the difference.
      if (empty_line == 0) empty_line = rows.line();
      continue;
    }
    if (empty_line > 0) {
      return absl::DataLossError(absl::StrCat(path, ", line ", empty_line, ": found an empty line before line ",
                                              rows.line(), ", expected a row: remove the empty line"));
    }
    if (first) {
      ASSIGN_OR_RETURN(const bool is_header, TakeFirstRow(path, files, cells, columns));
      if (is_header) continue;
    }
    if (cells.size() != columns.count) {
      return absl::DataLossError(absl::StrCat(path, ", line ", rows.line(), ": expected ", columns.count,
                                              " cells as in line 1 of ", files.train, ", found ", cells.size(),
                                              ": mend or remove the row"));
    }
    RETURN_IF_ERROR(ReadNumbers(path, rows.line(), cells, columns, row));
    RETURN_IF_ERROR(AppendSample(path, files, row, set));
    if (columns.label == kNoLabel) {
      ++set.count;
      continue;
    }
    RETURN_IF_ERROR(labels.Append(path, TrimCell(cells[columns.label]), set),
                    Place(path, rows.line(), columns.label, columns));
  }
  if (set.count == 0) return absl::DataLossError(absl::StrCat(path, " has no samples: expected one row or more"));
  return absl::OkStatus();
}

absl::Status ReadSet(const std::string& path, const TableFiles& files, Columns& columns, TableLabels& labels,
                     Dataset& set) {
  ASSIGN_OR_RETURN(const std::unique_ptr<FileStream> stream, FileStream::Open(path));
  CsvRows rows(*stream);
  RETURN_IF_ERROR(rows.Explain(ReadRows(path, files, rows, columns, labels, set)));
  set.type = FieldType::kNumbers;
  set.height = set.width = 1;
  set.channels = static_cast<int64_t>(columns.count) - (columns.label == kNoLabel ? 0 : 1);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainAndTest> ReadCsv(const TableFiles& files) {
  TrainAndTest sets;
  Columns columns;
  TableLabels labels({.numbers = files.numbers, .may_be_rare = files.may_lack_labels || files.labels_may_be_rare});
  // The training file comes first: its columns and labels are those that the test file is compared with.
  RETURN_IF_ERROR(ReadSet(files.train, files, columns, labels, sets.train));
  if (columns.label == kNoLabel) {
    LeaveLabelsOut(sets.train);
    return sets;
  }
  if (!files.test.empty()) RETURN_IF_ERROR(ReadSet(files.test, files, columns, labels, sets.test));
  // A first sample that is taken for a header would be lost without a word.
  if (columns.header_may_be_sample && labels.Contains(columns.names[columns.label])) {
    return absl::DataLossError(absl::StrCat(files.train, ", line 1: expected a header, because ",
                                            ShowCell(columns.names[columns.label]),
                                            " is text, found cells that are no names and a label that other rows "
                                            "have: write a header into the first line"));
  }
  RETURN_IF_ERROR(labels.Finish(sets), files.train);
  return sets;
}

}  // namespace starring
