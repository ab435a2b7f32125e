#include "worker/data/table_labels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/checkpoint/crc32c.h"
#include "worker/data/files/cell_text.h"
#include "worker/data/files/data_memory.h"

namespace starring {
namespace {

constexpr double kClassMax = 65535;

absl::Status Regression(absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the labels are ", found, ", expected ", expected,
      ": this looks like a target of regression: give a layer file, as --model=FILE, with the line loss { mse {} } (in "
      "Python target=\"numbers\"), or classes, of which one or more is a word or all are integers"));
}

bool IsInteger(double value) { return std::trunc(value) == value; }

// The classes of texts in the order of `keys`, which are by text; texts with equal keys have one class.
template <class Key>
std::vector<uint16_t> Rank(const std::vector<Key>& keys, const std::vector<std::string>& texts,
                           std::vector<std::string>& names) {
  std::map<Key, size_t> first_text;
  for (size_t i = 0; i < keys.size(); ++i) first_text.try_emplace(keys[i], i);
  std::map<Key, uint16_t> class_of;
  for (const auto& [key, text] : first_text) {
    // The cast is safe: Add lets no more than kLabelsMax texts in.
    class_of[key] = static_cast<uint16_t>(names.size());
    names.push_back(texts[text]);
  }
  std::vector<uint16_t> classes;
  for (const Key& key : keys) classes.push_back(class_of.at(key));
  return classes;
}

}  // namespace

void LeaveLabelsOut(Dataset& set) {
  set.has_labels = false;
  set.classes = 1;
  // The loader copies a label of each sample, so every sample has class 0.
  set.labels.resize(static_cast<size_t>(set.count));
}

bool HaveFraction(const std::vector<std::string>& texts) {
  bool found = false;
  for (const std::string& text : texts) {
    double value = 0;
    if (ReadCell(text, value) != CellKind::kNumber) return false;
    found = found || !IsInteger(value);
  }
  return found;
}

absl::StatusOr<uint16_t> TableLabels::Add(absl::string_view text) {
  // The checks below run once for each distinct text, and not for each sample.
  if (const auto known = numbers_.find(text); known != numbers_.end()) return known->second;
  double value = 0;
  const CellKind kind = ReadCell(text, value);
  if (kind == CellKind::kEmpty) return absl::DataLossError("expected a label, found an empty cell");
  if (kind == CellKind::kNotFinite) {
    return absl::DataLossError(absl::StrCat("expected a label, found ", ShowCell(text)));
  }
  if (text.size() > kLabelBytesMax) {
    return absl::DataLossError(absl::StrCat("expected a label of at most ", kLabelBytesMax, " bytes, found ",
                                            text.size(), ": ", ShowCell(text)));
  }
  if (AsUtf8(text) != text) {
    return absl::DataLossError(
        absl::StrCat("expected a label in UTF-8, found ", ShowCell(text), ": save the file as UTF-8"));
  }
  bytes_ += text.size();
  if (bytes_ > kLabelBytesOfAllMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the distinct labels have more than ", kLabelBytesOfAllMax, " bytes: give shorter ones"));
  }
  if (texts_.size() == kLabelsMax)
    return Regression(absl::StrCat("more than ", kLabelsMax, " distinct texts"), absl::StrCat("at most ", kLabelsMax));
  // The number is below kLabelsMax, which is 2^16.
  const auto number = static_cast<uint16_t>(texts_.size());
  numbers_.emplace(text, number);
  texts_.emplace_back(text);
  return number;
}

absl::StatusOr<std::vector<uint16_t>> TableLabels::Classes(size_t samples, std::vector<std::string>& names) const {
  std::vector<double> values;
  for (const std::string& text : texts_) {
    double value = 0;
    if (ReadCell(text, value) != CellKind::kNumber) return Rank(texts_, texts_, names);
    values.push_back(value);
  }
  const auto is_class = [](double value) { return IsInteger(value) && value >= 0 && value <= kClassMax; };
  // Such labels keep their values, so that class 7 of a file is output 7 of the model.
  if (std::ranges::all_of(values, is_class)) return std::vector<uint16_t>(values.begin(), values.end());
  std::vector<uint16_t> classes = Rank(values, texts_, names);
  if (std::ranges::all_of(values, IsInteger)) return classes;
  const std::string found = absl::StrCat(names.size(), " distinct numbers, not all of them integers");
  if (names.size() > kFractionLabelsMax) return Regression(found, absl::StrCat("at most ", kFractionLabelsMax));
  const bool are_rare = names.size() > kFractionLabelsFew && samples < kFractionSamplesMin * names.size();
  if (are_rare && !options_.may_be_rare) {
    return Regression(absl::StrCat(found, ", of ", samples, " samples"),
                      absl::StrCat("on average ", kFractionSamplesMin, " or more samples of each"));
  }
  return classes;
}

absl::Status TableLabels::Append(const std::string& path, absl::string_view text, Dataset& set) {
  ++set.count;
  if (options_.numbers) {
    float value = 0;
    if (ReadCell(text, value) != CellKind::kNumber) {
      return absl::DataLossError(absl::StrCat("expected a finite number of float32 as label, found ", ShowCell(text),
                                              ": the model's loss compares with numbers"));
    }
    RETURN_IF_ERROR(MakeRoom(path, 1, set.targets));
    set.targets.push_back(value);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const uint16_t number, Add(text));
  RETURN_IF_ERROR(MakeRoom(path, 1, set.labels));
  set.labels.push_back(number);
  return absl::OkStatus();
}

absl::Status TableLabels::Finish(TrainAndTest& sets) const {
  sets.class_names.clear();
  if (options_.numbers) {
    for (Dataset* const set : {&sets.train, &sets.test}) {
      set->target = TargetType::kNumbers;
      set->target_values = 1;
      set->labels_crc32c = ExtendCrc32c(0, std::as_bytes(std::span(set->targets)));
    }
    return absl::OkStatus();
  }
  const size_t samples = sets.train.labels.size() + sets.test.labels.size();
  ASSIGN_OR_RETURN(const std::vector<uint16_t> classes, Classes(samples, sets.class_names));
  // A number below the largest counts as a class even if no sample has it.
  const int64_t count = classes.empty() ? 0 : 1 + int64_t{*std::ranges::max_element(classes)};
  for (Dataset* const set : {&sets.train, &sets.test}) {
    for (uint16_t& label : set->labels) label = classes[label];
    // The checksum covers classes and not texts: "1" and "1.0" are the same data.
    set->labels_crc32c = ExtendCrc32c(0, std::as_bytes(std::span(set->labels)));
    set->classes = count;
  }
  return absl::OkStatus();
}

}  // namespace starring
