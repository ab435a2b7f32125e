#include "common/flags/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/not_written.h"
#include "common/base/status.h"

namespace starring {
namespace {

// Levenshtein's distance, for "did you mean". One row of the table is kept: `diagonal` is the entry of the row above
// that the loop has just overwritten. The cost, the product of the two lengths for each flag, arises only for an
// unknown flag.
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

// One flag as it was written somewhere.
struct Setting {
  const FlagRow* row = nullptr;
  std::optional<std::string> value;
  std::string place;  // empty, or "FILE:LINE: "
  int depth = 0;      // 0: the command line, 1: a file that it names, ...
};

absl::Status Refuse(absl::string_view place, absl::string_view flag, absl::string_view value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(place, "flag --", flag, " cannot be \"", value, "\": ", why));
}

absl::Status UnknownFlag(const FlagTable& table, absl::string_view place, absl::string_view name) {
  if (table.elsewhere != nullptr) {
    if (const std::string elsewhere = table.elsewhere(name); !elsewhere.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(place, "unknown flag --", name, ": ", elsewhere));
    }
  }
  // The starter of a bundle's program takes this one away (deploy/bundle/starter.cc), where it is the first.
  if (name == "libc") {
    return absl::InvalidArgumentError(absl::StrCat(place, "unknown flag --libc: only a bundle's programs have it, and ",
                                                   "it comes before all other flags, as --libc=own"));
  }
  absl::string_view nearest;
  size_t best = 4;  // a name with more changes than three was hardly meant
  for (const FlagRow& row : table.rows) {
    if (const size_t distance = EditDistance(name, row.name); distance < best) {
      best = distance;
      nearest = row.name;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(place, "unknown flag --", name,
                                                 nearest.empty() ? "" : absl::StrCat(", did you mean --", nearest, "?"),
                                                 " (--help shows all flags)"));
}

// "name" and "value" of "--name=value"; no value without "=".
std::pair<std::string, std::optional<std::string>> Split(absl::string_view word) {
  if (!absl::ConsumePrefix(&word, "--")) absl::ConsumePrefix(&word, "-");
  const size_t equals = word.find('=');
  if (equals == absl::string_view::npos) return {std::string(word), std::nullopt};
  return {std::string(word.substr(0, equals)), std::string(word.substr(equals + 1))};
}

absl::StatusOr<Setting> ReadSetting(const FlagTable& table, absl::string_view word, absl::string_view place,
                                    int depth) {
  auto [name, value] = Split(word);
  const FlagRow* row = table.Find(name);
  // A name may itself begin with "no" (--nodes): --noNAME is tried only when no flag has the whole name.
  if (row == nullptr && !value.has_value() && absl::StartsWith(name, "no")) {
    row = table.Find(absl::string_view(name).substr(2));
    if (row != nullptr && row->limits().kind != FlagLimits::Kind::kSwitch) row = nullptr;
    if (row != nullptr) value = "false";
  }
  if (row == nullptr) {
    // Abseil's own flags are linked into every program. Some would do something else than their name promises here.
    for (const absl::string_view abseils : {absl::string_view(name), absl::StripPrefix(name, "no")}) {
      if (const absl::string_view why = WhyAbseilsFlagIsRefused(abseils); !why.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(place, "flag --", name, " is not taken here: ", why));
      }
    }
    return UnknownFlag(table, place, name);
  }
  if (!value.has_value() && row->limits().kind == FlagLimits::Kind::kSwitch) value = "true";
  return Setting{.row = row, .value = value, .place = std::string(place), .depth = depth};
}

absl::Status NoValue(absl::string_view place, absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(place, "flag --", name, " has no value: write --", name, "=VALUE"));
}

// Prints the answer to --help or --version and ends the process. Returns only to refuse --help=WORD with an unknown
// word.
absl::Status AnswerAndExit(const FlagTable& table, absl::string_view name, absl::string_view word) {
  std::string text =
      absl::StrCat("starring ", table.program, " ", kStarringVersion, ", compiled by GCC ", __VERSION__, "\n");
  if (name != "version") {
    ASSIGN_OR_RETURN(text, HelpText(table, word));
  }
  std::fputs(text.c_str(), stdout);
  std::exit(kExitOk);
}

bool AsksForAnswer(absl::string_view name) {
  return name == "help" || name == "h" || name == "helpfull" || name == "version";
}

// Whether a shell was to replace the beginning of a path: bash leaves the ~ of --record=~/r.json, and no shell reads a
// file of flags.
bool BeginsAsInShell(const FlagLimits& limits, absl::string_view path) {
  const bool is_path = limits.kind == FlagLimits::Kind::kText &&
                       (absl::StrContains(limits.what, "file") || absl::StrContains(limits.what, "folder"));
  if (!is_path || path.empty()) return false;
  if (path[0] == '~') return path.size() == 1 || path[1] == '/';
  return path[0] == '$' && path.size() > 1 && (path[1] == '{' || path[1] == '_' || absl::ascii_isalpha(path[1]));
}

// Collects the settings of the command line and of its files, and applies them at the end: whether a setting counts
// depends on those that come after it.
class Parser {
 public:
  Parser(const FlagTable& table, FlagFilePart part) : table_(table), part_(part) {}

  absl::Status ReadWords(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i) {
      const absl::string_view word = argv[i];
      if (word == "--") break;  // the rest belongs to the launcher's workers
      if (!absl::StartsWith(word, "-")) {
        return absl::InvalidArgumentError(
            absl::StrCat("unexpected word \"", word, "\": every setting is a --flag=value"));
      }
      auto [name, value] = Split(word);
      // --help wins even if a flag after it is wrong: people ask for help when a command line does not work.
      if (AsksForAnswer(name)) RETURN_IF_ERROR(AnswerAndExit(table_, name, value.value_or("")));
      if (name == "flagfile") {
        if (!value.has_value() && i + 1 < argc) value = argv[++i];
        if (value.value_or("").empty()) return NoValue("", name);
        RETURN_IF_ERROR(ReadFile(*value));
        continue;
      }
      ASSIGN_OR_RETURN(Setting setting, ReadSetting(table_, word, "", 0));
      // "--name value": the value may begin with a dash, as -1 does, so the next word is never taken for a flag.
      if (!setting.value.has_value() && i + 1 < argc) setting.value = argv[++i];
      RETURN_IF_ERROR(Add(std::move(setting)));
    }
    return absl::OkStatus();
  }

  // Applies the innermost settings first: those of the command line are applied last and overwrite the others. The sort
  // is stable, so that of several bad values at one depth the one that was written first is refused.
  absl::StatusOr<ParsedFlags> Apply(void* options) {
    std::stable_sort(settings_.begin(), settings_.end(),
                     [](const Setting& a, const Setting& b) { return a.depth > b.depth; });
    for (const Setting& setting : settings_) {
      const FlagRow& row = *setting.row;
      if (BeginsAsInShell(row.limits(), *setting.value)) {
        return Refuse(setting.place, row.name, *setting.value,
                      absl::StrCat("no shell has replaced its beginning: write the whole path, or ./", *setting.value,
                                   " if that is the name"));
      }
      // The limits look at the value as it was read, not at the text: "0x10" is 16.
      if (!row.slot.parse(*setting.value, options) || !row.limits().Allow(row.slot.print(options))) {
        return Refuse(setting.place, row.name, *setting.value, row.limits().Sentence());
      }
      parsed_.given.insert(std::string(row.name));
    }
    return std::move(parsed_);
  }

 private:
  absl::Status ReadFile(const std::string& path) {
    ASSIGN_OR_RETURN(const FlagFile file, ReadFlagFile(path));
    const bool has_dashes = !file.dashes_place.empty();
    if (has_dashes && part_ == FlagFilePart::kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.dashes_place, "a line -- is for the files of launch and worker"));
    }
    const bool workers = has_dashes && part_ == FlagFilePart::kWorker;
    for (const FlagLine& line : workers ? file.worker_lines : file.lines) {
      const std::string name = Split(line.word).first;
      // A program that prints help because of a file would seem broken to the person who started it.
      if (AsksForAnswer(name)) {
        return absl::InvalidArgumentError(absl::StrCat(line.place, "--", name, " is for the command line"));
      }
      ASSIGN_OR_RETURN(Setting setting, ReadSetting(table_, line.word, line.place, line.depth));
      RETURN_IF_ERROR(Add(std::move(setting)));
    }
    // The workers read their part themselves, so that their errors name file and line.
    if (part_ == FlagFilePart::kLauncher && has_dashes) parsed_.files_with_worker_part.push_back(path);
    return absl::OkStatus();
  }

  // Remembers a setting. The same flag at the same depth is refused: which of the two was meant is a guess.
  absl::Status Add(Setting setting) {
    const std::string name(setting.row->name);
    if (!setting.value.has_value()) return NoValue(setting.place, name);
    const auto [known, is_new] = places_.emplace(std::make_pair(name, setting.depth), setting.place);
    if (!is_new) {
      const absl::string_view first = absl::StripSuffix(known->second, ": ");
      return absl::InvalidArgumentError(absl::StrCat(setting.place, "flag --", name, " is given twice: keep one",
                                                     first.empty() ? "" : absl::StrCat(" (the other: ", first, ")")));
    }
    settings_.push_back(std::move(setting));
    return absl::OkStatus();
  }

  const FlagTable& table_;
  const FlagFilePart part_;
  std::vector<Setting> settings_;
  std::map<std::pair<std::string, int>, std::string> places_;  // by name and depth
  ParsedFlags parsed_;
};

}  // namespace

int ExitCode(const absl::Status& status) {
  if (IsNotWritten(status)) return kExitNotWritten;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    // Errors that a restart with the same flags and files would meet again.
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

absl::Status RefuseFlag(absl::string_view flag, absl::string_view value, absl::string_view why) {
  return Refuse("", flag, value, why);
}

void EnterUsersFolder(const char* program) {
  constexpr char kVariable[] = "BUILD_WORKING_DIRECTORY";
  const char* const folder = std::getenv(kVariable);
  if (folder == nullptr) return;
  if (chdir(folder) != 0) std::fprintf(stderr, "%s: cannot enter %s: %s\n", program, folder, std::strerror(errno));
  unsetenv(kVariable);
}

namespace flag_internal {

absl::StatusOr<ParsedFlags> ParseInto(int argc, const char* const* argv, const FlagTable& table,
                                      const std::type_info& holder, void* options, FlagFilePart part) {
  CHECK(*table.holder == holder) << "the flags of " << table.program << " are kept in another struct";
  Parser parser(table, part);
  RETURN_IF_ERROR(parser.ReadWords(argc, argv));
  return parser.Apply(options);
}

}  // namespace flag_internal
}  // namespace starring
