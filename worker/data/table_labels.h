// The labels of a table's samples: numbers, or the classes that numbers or texts become.
//
// If all labels are integers from 0 to 65535, however written (1, 1.0, 1e0), they are the classes. Otherwise the
// classes are numbered from 0 on: in the order of the labels' values if all labels are numbers, else in the order of
// their bytes.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_DATA_TABLE_LABELS_H_
#define STARRING_WORKER_DATA_TABLE_LABELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"

namespace starring {

// Distinct labels of both sets together.
inline constexpr size_t kLabelsMax = 1 << 16;
// Distinct labels that are numbers, of which one or more is no integer. The samples of a regression hardly share any:
// so if they are more than kFractionLabelsFew, each needs kFractionSamplesMin samples.
inline constexpr size_t kFractionLabelsMax = 1000;
inline constexpr size_t kFractionLabelsFew = 32;
inline constexpr size_t kFractionSamplesMin = 4;
inline constexpr size_t kLabelBytesMax = 256;
inline constexpr size_t kLabelBytesOfAllMax = 4 << 20;  // a checkpoint has them

// Makes `set`, whose samples are counted, one without labels.
void LeaveLabelsOut(Dataset& set);

// True if all texts are numbers, and one or more is no integer.
[[nodiscard]] bool HaveFraction(const std::vector<std::string>& texts);

struct TableLabelOptions {
  bool numbers = false;      // labels stay numbers, and there are no classes
  bool may_be_rare = false;  // each class may have fewer than kFractionSamplesMin samples: nothing trains on them
};

class TableLabels {
 public:
  explicit TableLabels(const TableLabelOptions& options = {}) : options_(options) {}

  // Appends the label of the next sample to `set`, where classes have their number until Finish. DataLoss without a
  // place, and InvalidArgument: as Add has them, or a text that is no finite float32; ResourceExhausted, naming `path`.
  absl::Status Append(const std::string& path, absl::string_view text, Dataset& set);

  // The number of `text` until Finish: equal texts have one. DataLoss, without a place: an empty or long text, nan,
  // infinity, bytes that are not UTF-8. InvalidArgument: more than kLabelsMax texts, or kLabelBytesOfAllMax bytes.
  // REQUIRES: `text` is trimmed.
  absl::StatusOr<uint16_t> Add(absl::string_view text);

  bool Contains(absl::string_view text) const { return numbers_.contains(text); }

  // After the last label: sets type, classes, class_names and checksums of the labels of both sets. The name of a class
  // is the first text that was added for it. InvalidArgument: classes that are numbers, of which one or more is no
  // integer, and more than kFractionLabelsMax, or than kFractionLabelsFew with too few samples of each.
  absl::Status Finish(TrainAndTest& sets) const;

 private:
  // By text its class; the classes' names if those are not their numbers.
  absl::StatusOr<std::vector<uint16_t>> Classes(size_t samples, std::vector<std::string>& names) const;

  const TableLabelOptions options_;
  absl::flat_hash_map<std::string, uint16_t> numbers_;
  std::vector<std::string> texts_;  // by number
  size_t bytes_ = 0;                // of the texts
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_TABLE_LABELS_H_
