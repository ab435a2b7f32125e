#include "worker/predict/prediction_file.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/not_written.h"
#include "common/base/status.h"

namespace starring {
namespace {

constexpr absl::string_view kCsv = ".csv", kNpy = ".npy";
// NumPy itself pads its headers to this multiple, so that a mapped array is aligned for vectors.
constexpr size_t kNpyAlignment = 64;  // of the first element

// A cell as RFC 4180 has it.
std::string Cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

// Whether a row names one class.
bool HasPrediction(const PredictionFile::Options& options) {
  return options.content == PredictionFile::Content::kClasses ||
         (options.content == PredictionFile::Content::kBits && options.outputs == 1);
}

std::string CsvHeader(const PredictionFile::Options& options) {
  std::string header = "index";
  if (HasPrediction(options)) absl::StrAppend(&header, ",predicted", options.class_names.empty() ? "" : ",name");
  const absl::string_view letter = options.content == PredictionFile::Content::kNumbers ? ",y" : ",p";
  for (int64_t i = 0; i < options.outputs; ++i) absl::StrAppend(&header, letter, i);
  return header + "\n";
}

// Version 1.0 of NumPy's format: magic number, length of the dictionary, dictionary, spaces and a line's end.
std::string NpyHeader(const PredictionFile::Options& options) {
  std::string dictionary = absl::StrFormat("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }",
                                           options.samples, options.outputs);
  const absl::string_view magic("\x93NUMPY\1\0", 8);
  const size_t used = magic.size() + 2 + dictionary.size() + 1;
  dictionary.append((kNpyAlignment - used % kNpyAlignment) % kNpyAlignment, ' ');
  dictionary += '\n';
  // Version 1.0 has 16 bits, little-endian, for the length. The dictionary has some 100 bytes.
  const std::string length = {static_cast<char>(dictionary.size() & 0xff), static_cast<char>(dictionary.size() >> 8)};
  return absl::StrCat(magic, length, dictionary);
}

}  // namespace

PredictionFile::PredictionFile(Options options, std::unique_ptr<AtomicFile> file)
    : options_(std::move(options)), is_csv_(absl::EndsWith(options_.path, kCsv)), file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<PredictionFile>> PredictionFile::Create(Options options) {
  if (!absl::EndsWith(options.path, kCsv) && !absl::EndsWith(options.path, kNpy)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out=", options.path, ": expected a name that ends in ", kCsv, " or ", kNpy));
  }
  std::error_code error;
  // AtomicFile renames its file to the path, which would replace a link and not the file that it names.
  const std::filesystem::path target = std::filesystem::weakly_canonical(options.path, error);
  const std::string path = error ? options.path : target.string();
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat("--out=", options.path, " is there and no file: give another name"));
  }
  absl::StatusOr<std::unique_ptr<AtomicFile>> file = AtomicFile::Create(path);
  RETURN_IF_ERROR(NotWritten(file.status(), "the predictions"));
  auto predictions = absl::WrapUnique(new PredictionFile(std::move(options), *std::move(file)));
  const Options& own = predictions->options_;
  RETURN_IF_ERROR(predictions->Write(predictions->is_csv_ ? CsvHeader(own) : NpyHeader(own)));
  return predictions;
}

absl::Status PredictionFile::Write(const std::string& text) {
  return NotWritten(file_->Append(std::as_bytes(std::span(text))), "the predictions");
}

std::string PredictionFile::CsvRow(std::span<const float> values) const {
  std::string row = absl::StrCat(rows_);
  if (HasPrediction(options_)) {
    // The first of equal ones, as numpy.argmax.
    const size_t predicted = options_.content == Content::kBits
                                 ? static_cast<size_t>(values[0] > 0.5f)
                                 : static_cast<size_t>(std::ranges::max_element(values) - values.begin());
    absl::StrAppend(&row, ",", predicted);
    if (!options_.class_names.empty()) absl::StrAppend(&row, ",", Cell(options_.class_names[predicted]));
  }
  for (const float value : values) absl::StrAppendFormat(&row, ",%.9g", value);
  return row + "\n";
}

absl::Status PredictionFile::Append(std::span<const float> values) {
  const auto outputs = static_cast<size_t>(options_.outputs);
  std::string text;
  for (std::span<const float> rest = values; !rest.empty(); rest = rest.subspan(outputs)) {
    if (is_csv_) text += CsvRow(rest.first(outputs));
    ++rows_;
  }
  if (is_csv_) return Write(text);
  return NotWritten(file_->Append(std::as_bytes(values)), "the predictions");
}

absl::Status PredictionFile::Commit() {
  // An npy header promises the rows before the first of them is written.
  CHECK_EQ(rows_, options_.samples);
  return NotWritten(file_->Commit(), "the predictions");
}

}  // namespace starring
