#include "worker/data/files/cell_text.h"

#include <cmath>
#include <system_error>

#include "absl/strings/charconv.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace starring {
namespace {

constexpr size_t kShownBytes = 40;

template <class Float>
CellKind Read(absl::string_view text, Float& value) {
  if (text.empty()) return CellKind::kEmpty;
  // from_chars knows no plus sign.
  if (text[0] == '+' && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  // from_chars reads 0x10 as 16, whatever the format.
  const absl::string_view digits = text.substr(text[0] == '-' ? 1 : 0);
  if (digits.size() > 1 && (digits[1] == 'x' || digits[1] == 'X')) return CellKind::kText;
  Float found = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = absl::from_chars(text.data(), end, found);
  if (error == std::errc::invalid_argument || parsed != end) return CellKind::kText;
  if (!std::isfinite(found) && error == std::errc()) return CellKind::kNotFinite;
  if (error == std::errc::result_out_of_range) {
    // On this error from_chars sets the nearest number: the largest of the type, or one next to 0.
    if (std::abs(found) > 1) return CellKind::kTooLarge;
    found = std::copysign(Float{0}, found);
  }
  value = found;
  return CellKind::kNumber;
}

}  // namespace

absl::string_view TrimCell(absl::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

CellKind ReadCell(absl::string_view text, float& value) { return Read(text, value); }
CellKind ReadCell(absl::string_view text, double& value) { return Read(text, value); }

std::string ShowCell(absl::string_view text) {
  const absl::string_view cut = text.size() > kShownBytes ? "..." : "";
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShownBytes)), "\"", cut);
}

}  // namespace starring
