#include "common/command_line.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace starring {
namespace {

// Levenshtein's distance, for "did you mean".
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row.back();
}

absl::Status UnknownFlag(absl::string_view name) {
  std::string nearest;
  size_t best = 4;  // further away is no help
  for (const auto& [known, flag] : absl::GetAllFlags()) {
    if (const size_t distance = EditDistance(name, known); distance < best) {
      best = distance;
      nearest = std::string(known);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name,
                                                 nearest.empty() ? "" : absl::StrCat(", did you mean --", nearest, "?"),
                                                 " (--help lists all flags)"));
}

}  // namespace

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnauthenticated:
      return kExitRefused;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitPeerMissing;
    default:
      return kExitFailed;
  }
}

absl::StatusOr<std::set<std::string>> ParseFlags(int argc, const char* const* argv) {
  std::set<std::string> given;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (word == "--") break;
    if (!absl::ConsumePrefix(&word, "--") && !absl::ConsumePrefix(&word, "-")) {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected word \"", word, "\": every setting is a --flag=value"));
    }
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    std::string name(parts.first);
    if (absl::StartsWith(name, "help")) {
      const char* help[] = {argv[0], argv[i]};
      absl::ParseCommandLine(2, const_cast<char**>(help));  // prints and exits
    }
    const bool has_value = word.find('=') != absl::string_view::npos;
    std::string value(parts.second);
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr && !has_value && absl::StartsWith(name, "no")) {
      absl::CommandLineFlag* negated = absl::FindCommandLineFlag(name.substr(2));
      if (negated != nullptr && negated->IsOfType<bool>()) {
        flag = negated;
        name = name.substr(2);
        value = "false";
      }
    }
    if (flag == nullptr) return UnknownFlag(name);
    if (!has_value && value.empty()) {
      if (flag->IsOfType<bool>()) {
        value = "true";
      } else if (i + 1 < argc) {
        value = argv[++i];
      } else {
        return absl::InvalidArgumentError(absl::StrCat("flag --", name, " has no value: write --", name, "=VALUE"));
      }
    }
    if (!given.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", name, " is given twice: keep one"));
    }
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("flag --", name, " cannot be \"", value, "\"", error.empty() ? "" : ": ", error));
    }
  }
  return given;
}

}  // namespace starring
