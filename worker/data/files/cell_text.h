// The text of one cell of a table: its spaces, its number, and how a message shows it.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_DATA_FILES_CELL_TEXT_H_
#define STARRING_WORKER_DATA_FILES_CELL_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace starring {

// Without the spaces and tabs around it.
absl::string_view TrimCell(absl::string_view text);

enum class CellKind {
  kNumber,
  kEmpty,
  kNotFinite,  // "nan", "inf", ... with or without a sign
  kTooLarge,   // beyond the type
  kText,       // anything else
};

// A decimal number: "1", "+.5", "-1.5e-3". `value` is the nearest one of the type; what is closer to 0 than the type's
// least number is 0. For other kinds `value` stays. REQUIRES: `text` is trimmed.
CellKind ReadCell(absl::string_view text, float& value);
CellKind ReadCell(absl::string_view text, double& value);

// In quotes, with escapes for what is not printable; the beginning of a long text.
std::string ShowCell(absl::string_view text);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_CELL_TEXT_H_
