#include "common/flags/flag_table.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace starring {
namespace {

constexpr size_t kLineWidth = 120;
constexpr size_t kMeaningColumn = 34;

// Flags that Abseil's parser and its libraries give to every program.
struct AbseilFlag {
  absl::string_view name;
  absl::string_view why;
};
constexpr absl::string_view kNoEnvironment =
    "flags are not read from the environment: write them on the command line or into a --flagfile";
constexpr absl::string_view kUseHelp = "--help shows every flag, --help=WORD those of a topic or with that word";
constexpr AbseilFlag kAbseilFlags[] = {
    {"flagfile", "a file of flags is --flagfile=FILE"},
    {"fromenv", kNoEnvironment},
    {"tryfromenv", kNoEnvironment},
    {"undefok", "an unknown flag is always refused: drop the flag that this program does not know"},
    {"help", "it has no negation: drop it"},
    {"helpfull", kUseHelp},
    {"helpmatch", kUseHelp},
    {"helpon", kUseHelp},
    {"helppackage", kUseHelp},
    {"helpshort", kUseHelp},
    {"only_check_args", "a run checks all flags before it starts anything: --max_steps=1 is the shortest"},
    {"version", "it has no negation: drop it"},
};

bool Contains(absl::string_view text, absl::string_view word) {
  return absl::StrContains(absl::AsciiStrToLower(text), absl::AsciiStrToLower(word));
}

std::vector<absl::string_view> Choices(const FlagLimits& limits) {
  std::vector<absl::string_view> names;
  for (const absl::string_view name : limits.choices) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

const absl::CommandLineFlag& FlagOf(const FlagRow& row) {
  const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(row.name);
  CHECK(flag != nullptr) << "the table of flags has --" << row.name << ", which has no ABSL_FLAG";
  return *flag;
}

// `head` alone on its line if it reaches into the column of the meaning. The limits stay on one line.
void AppendWrapped(absl::string_view head, absl::string_view meaning, absl::string_view limits, std::string* text) {
  std::string line(head);
  if (line.size() + 1 > kMeaningColumn) {
    absl::StrAppend(text, line, "\n");
    line.clear();
  }
  line.resize(kMeaningColumn, ' ');
  bool begun = false;
  std::vector<absl::string_view> words = absl::StrSplit(meaning, ' ', absl::SkipEmpty());
  words.push_back(limits);
  for (const absl::string_view word : words) {
    if (begun && line.size() + 1 + word.size() > kLineWidth) {
      absl::StrAppend(text, line, "\n");
      line.assign(kMeaningColumn, ' ');
      begun = false;
    }
    absl::StrAppend(&line, begun ? " " : "", word);
    begun = true;
  }
  absl::StrAppend(text, line, "\n");
}

std::string Head(const FlagTable& table) {
  return absl::StrCat(
      table.program, ": ", table.purpose, "\n",
      "Each flag is shown as --name=default, with its meaning and [limits]. It is written --name=value or --name "
      "value;\n"
      "a switch also --name or --noname. --help=WORD shows a topic, or the flags with that word; --version the "
      "version.\n"
      "--flagfile=FILE reads flags from a file: one --name=value a line; empty lines and lines that begin with # are\n"
      "skipped. The command line wins over a file, and a file over the files that it names.\n");
}

}  // namespace

std::string FlagLimits::Brief() const {
  switch (kind) {
    case Kind::kSwitch:
      return "true, false";
    case Kind::kWhole:
      return absl::StrCat(least, " to ", most);
    case Kind::kReal:
      return absl::StrCat(least_allowed ? "" : "above ", real_least, " to ", most_allowed ? "" : "below ", real_most);
    case Kind::kChoice:
      return absl::StrJoin(Choices(*this), ", ");
    case Kind::kText:
      break;
  }
  return std::string(what);
}

std::string FlagLimits::Sentence() const {
  switch (kind) {
    case Kind::kSwitch:
      return "it must be true or false";
    case Kind::kWhole:
      return absl::StrCat("it must be a whole number from ", least, " to ", most);
    case Kind::kReal:
      return absl::StrCat("it must be a number ", least_allowed ? "from " : "above ", real_least,
                          most_allowed ? " to " : " to below ", real_most);
    case Kind::kChoice:
      return absl::StrCat("it must be one of ", absl::StrJoin(Choices(*this), ", "));
    case Kind::kText:
      break;
  }
  return absl::StrCat("it must be: ", what);
}

bool FlagLimits::Allow(absl::string_view value) const {
  switch (kind) {
    case Kind::kWhole: {
      if (absl::StartsWith(value, "-")) {
        int64_t number;
        return absl::SimpleAtoi(value, &number) && number >= least;
      }
      uint64_t number;
      return absl::SimpleAtoi(value, &number) && number <= most &&
             (least <= 0 || number >= static_cast<uint64_t>(least));
    }
    case Kind::kReal: {
      double number;  // a NaN fails every comparison
      if (!absl::SimpleAtod(value, &number)) return false;
      return (least_allowed ? number >= real_least : number > real_least) &&
             (most_allowed ? number <= real_most : number < real_most);
    }
    case Kind::kChoice:
      return std::find(std::begin(choices), std::end(choices), value) != std::end(choices) && !value.empty();
    case Kind::kSwitch:
    case Kind::kText:
      break;
  }
  return true;
}

const FlagRow* FlagTable::Find(absl::string_view name) const {
  const auto row = std::find_if(rows.begin(), rows.end(), [name](const FlagRow& each) { return each.name == name; });
  return row == rows.end() ? nullptr : &*row;
}

absl::StatusOr<std::string> HelpText(const FlagTable& table, absl::string_view word) {
  std::string text = word.empty() ? Head(table) : "";
  std::vector<absl::string_view> topics;
  absl::string_view shown_topic;
  for (const FlagRow& row : table.rows) {
    if (topics.empty() || topics.back() != row.topic) topics.push_back(row.topic);
    const absl::CommandLineFlag& flag = FlagOf(row);
    const std::string meaning = flag.Help();
    if (!word.empty() && row.topic != word && !Contains(row.name, word) && !Contains(meaning, word)) continue;
    if (shown_topic != row.topic) {
      absl::StrAppend(&text, row.topic, "\n");
      shown_topic = row.topic;
    }
    AppendWrapped(absl::StrCat("  --", row.name, "=", flag.DefaultValue()), meaning,
                  absl::StrCat("[", row.limits.Brief(), "]"), &text);
  }
  if (!shown_topic.empty()) return text;
  return absl::InvalidArgumentError(absl::StrCat("no flag of ", table.program, " has the word \"", word,
                                                 "\": its topics are ", absl::StrJoin(topics, ", "),
                                                 ", and --help shows all flags"));
}

absl::Status CheckFlagTable(const FlagTable& table) {
  std::set<absl::string_view> names;
  std::set<absl::string_view> topics;
  absl::string_view topic;
  for (const FlagRow& row : table.rows) {
    if (!names.insert(row.name).second) return absl::InternalError(absl::StrCat("two rows for --", row.name));
    if (row.topic != topic && !topics.insert(row.topic).second) {
      return absl::InternalError(absl::StrCat("--", row.name, " is apart from the others of topic ", row.topic));
    }
    topic = row.topic;
    const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(row.name);
    if (flag == nullptr) return absl::InternalError(absl::StrCat("no ABSL_FLAG for the row --", row.name));
    if (flag->Help().empty()) return absl::InternalError(absl::StrCat("no meaning of --", row.name));
    if ((row.limits.kind == FlagLimits::Kind::kSwitch) != flag->IsOfType<bool>()) {
      return absl::InternalError(absl::StrCat("--", row.name, " is a switch in its row or its ABSL_FLAG, not in both"));
    }
    if (!row.limits.Allow(flag->DefaultValue())) {
      return absl::InternalError(
          absl::StrCat("default of --", row.name, " is ", flag->DefaultValue(), ": ", row.limits.Sentence()));
    }
  }
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (WhyAbseilsFlagIsRefused(name).empty() && table.Find(name) == nullptr) {
      return absl::InternalError(absl::StrCat("no row for --", name, " of ", flag->Filename()));
    }
  }
  return absl::OkStatus();
}

absl::string_view WhyAbseilsFlagIsRefused(absl::string_view name) {
  for (const AbseilFlag& flag : kAbseilFlags) {
    if (flag.name == name) return flag.why;
  }
  return {};
}

}  // namespace starring
