#include "common/flags/flag_table.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace starring {
namespace {

constexpr size_t kLineWidth = 120;
constexpr size_t kMeaningColumn = 34;

// Flags that Abseil's parser and its libraries give to every program. Without this table each would be refused as
// unknown, although Abseil's pages describe it. Programs read --help, --version and --flagfile before they look here; a
// flag that is found here under one of those names is a negation (--nohelp) or, in a file of flags, a --flagfile
// without a value.
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
  // The array's unused entries are empty.
  for (const absl::string_view name : limits.choices) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

// Appends a flag to the help: `head` at the left, `meaning` and `limits` wrapped from kMeaningColumn to kLineWidth. A
// `head` that reaches into the column of the meaning has a line of its own. The limits are not wrapped: people copy
// values from them.
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
    // A word that is longer than the column gets a line of its own. Without `begun` an empty line would precede it.
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

// A string in JSON. Bytes above 127 stay as they are: JSON is UTF-8, and so are the flags' texts. The cast matters
// where char is signed, because such bytes would compare as less than 0x20.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : AsUtf8(text)) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&quoted, "\\u", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad4));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// The limits that the peer's command line checks: the type, the ends of whole numbers, and the names.
std::string LimitsJson(const FlagLimits& limits) {
  switch (limits.kind) {
    case FlagLimits::Kind::kSwitch:
      return R"("type": "bool")";
    case FlagLimits::Kind::kWhole:
      return absl::StrCat(R"("type": "int", "least": )", limits.least, R"(, "most": )", limits.most);
    case FlagLimits::Kind::kReal:
      return R"("type": "float")";
    case FlagLimits::Kind::kChoice: {
      const auto quote = [](std::string* out, absl::string_view name) { absl::StrAppend(out, Quoted(name)); };
      return absl::StrCat(R"("type": "str", "choices": [)", absl::StrJoin(Choices(limits), ", ", quote), "]");
    }
    case FlagLimits::Kind::kText:
      break;
  }
  return R"("type": "str")";
}

// The text in the column "ranks" of a page.
absl::string_view RanksText(const FlagRow& row) {
  if (row.Has(kGivenOnAllRanks)) return "all or none";
  if (row.Has(kSameContent)) return "same content";
  // A flag with a field in JobSpec is compared there.
  return row.Has(kSameOnAllRanks) || row.Has(kInJobSpec) ? "same" : "";
}

// The text in the column "resumed" of a page.
absl::string_view ResumedText(const FlagRow& row) {
  if (row.Has(kSameContent)) return "same content";
  return row.Has(kSameWhenResumed) ? "same" : row.Has(kSaidWhenResumed) ? "said" : "";
}

std::vector<std::pair<std::string, std::string>> FlagsWith(const FlagTable& table, FlagTrait trait,
                                                           const void* options) {
  std::vector<std::pair<std::string, std::string>> flags;
  for (const FlagRow& row : table.rows) {
    if (row.Has(trait)) flags.emplace_back(row.name, row.resolved().print(options));
  }
  return flags;
}

}  // namespace

std::string FlagLimits::Brief() const {
  switch (kind) {
    case Kind::kSwitch:
      return "true, false";
    case Kind::kWhole:
      return absl::StrCat(least, " to ", most, word.empty() ? "" : ", or ", word);
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
      return absl::StrCat("it must be a whole number from ", least, " to ", most, word.empty() ? "" : ", or ", word);
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
      if (!word.empty() && value == word) return true;
      // A number with a sign is read as signed, any other one as unsigned: a seed may be as large as 2^64 - 1.
      if (absl::StartsWith(value, "-")) {
        int64_t number;
        return absl::SimpleAtoi(value, &number) && number >= least;
      }
      // The cast of a negative `least` would be a huge number, which no value reaches.
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
      // The array's unused entries are empty, so an empty value would be found among them.
      return std::find(std::begin(choices), std::end(choices), value) != std::end(choices) && !value.empty();
    case Kind::kSwitch:
    case Kind::kText:
      break;
  }
  return true;
}

std::vector<std::pair<std::string, std::string>> AgreedFlags(const FlagTable& table, const void* options) {
  std::vector<std::pair<std::string, std::string>> agreed;
  for (const FlagRow& row : table.rows) {
    // The value that the program works with: the word auto may mean another value on another machine.
    const std::string value = row.resolved().print(options);
    if (row.Has(kSameOnAllRanks)) agreed.emplace_back(row.name, value);
    // The value itself may differ, as a path does from host to host.
    if (row.Has(kGivenOnAllRanks)) agreed.emplace_back(row.name, value.empty() ? "" : "(given)");
  }
  return agreed;
}

std::vector<std::pair<std::string, std::string>> ResumedFlags(const FlagTable& table, const void* options) {
  return FlagsWith(table, kSameWhenResumed, options);
}

std::vector<std::pair<std::string, std::string>> SaidFlags(const FlagTable& table, const void* options) {
  return FlagsWith(table, kSaidWhenResumed, options);
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
    // `topics` also has those that are not shown: the refusal below lists all of them.
    if (topics.empty() || topics.back() != row.topic) topics.push_back(row.topic);
    if (!word.empty() && row.topic != word && !Contains(row.name, word) && !Contains(row.meaning, word)) continue;
    if (shown_topic != row.topic) {
      absl::StrAppend(&text, row.topic, "\n");
      shown_topic = row.topic;
    }
    AppendWrapped(absl::StrCat("  --", row.name, "=", row.slot.print(table.defaults)), row.meaning,
                  absl::StrCat("[", row.limits().Brief(), "]"), &text);
  }
  if (!shown_topic.empty()) return text;
  return absl::InvalidArgumentError(absl::StrCat("no flag of ", table.program, " has the word \"", word,
                                                 "\": its topics are ", absl::StrJoin(topics, ", "),
                                                 ", and --help shows all flags"));
}

std::string FlagsMarkdown(const FlagTable& table) {
  std::string text = absl::StrCat(kFlagsMarkdownBegin,
                                  "\n| flag and default | meaning | limits | ranks | resumed | peer |\n"
                                  "| --- | --- | --- | --- | --- | --- |\n");
  absl::string_view topic;
  for (const FlagRow& row : table.rows) {
    if (row.topic != topic) absl::StrAppend(&text, "| **", row.topic, "** | | | | | |\n");
    topic = row.topic;
    absl::StrAppend(&text, "| `--", row.name, "=", row.slot.print(table.defaults), "` | ", row.meaning, " | ",
                    row.limits().Brief(), " | ", RanksText(row), " | ", ResumedText(row), " | ",
                    row.Has(kPeerTakes) ? "yes" : "", " |\n");
  }
  absl::StrAppend(&text, kFlagsMarkdownEnd);
  return text;
}

std::string FlagJson(FlagSlot::Json json, absl::string_view value) {
  switch (json) {
    case FlagSlot::Json::kBool:
    case FlagSlot::Json::kNumber:
      return std::string(value);
    case FlagSlot::Json::kQuoted:
    case FlagSlot::Json::kText:
      return Quoted(value);
    case FlagSlot::Json::kList:
      break;
  }
  std::vector<std::string> items;
  // An empty list prints as an empty text, which without SkipEmpty would become a list of one empty item.
  for (const absl::string_view item : absl::StrSplit(value, ',', absl::SkipEmpty())) items.push_back(Quoted(item));
  return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
}

std::string FlagNames(const FlagTable& table) {
  std::string lines;
  for (const FlagRow& row : table.rows) absl::StrAppend(&lines, "\"", row.name, "\",\n");
  return lines;
}

std::string FlagsJson(const FlagTable& table) {
  std::vector<std::string> lines;
  for (const FlagRow& row : table.rows) {
    if (row.Has(kNotRecorded)) continue;
    lines.push_back(absl::StrCat("  ", Quoted(row.name), ": {", LimitsJson(row.limits()), R"(, "default": )",
                                 FlagJson(row.slot.json, row.slot.print(table.defaults)), R"(, "peer": )",
                                 row.Has(kPeerTakes) ? "true" : "false", R"(, "meaning": )", Quoted(row.meaning), "}"));
  }
  return absl::StrCat("{\n", absl::StrJoin(lines, ",\n"), "\n}\n");
}

absl::Status CheckFlagTable(const FlagTable& table) {
  std::set<absl::string_view> names;
  std::set<absl::string_view> topics;
  absl::string_view topic;
  for (const FlagRow& row : table.rows) {
    if (!names.insert(row.name).second) return absl::InternalError(absl::StrCat("two rows for --", row.name));
    // --help and the pages print a topic's heading where the topic changes. Rows that are apart would give it two
    // headings.
    if (row.topic != topic && !topics.insert(row.topic).second) {
      return absl::InternalError(absl::StrCat("--", row.name, " is apart from the others of topic ", row.topic));
    }
    topic = row.topic;
    if (row.meaning.empty()) return absl::InternalError(absl::StrCat("no meaning of --", row.name));
    // `parse` and `print` cast a void* to the row's holder. A row of another struct would read and write foreign
    // memory.
    if (*row.slot.holder != *table.holder || *row.resolved().holder != *table.holder) {
      return absl::InternalError(absl::StrCat("--", row.name, " is kept in other options than those of the program"));
    }
    const std::string value = row.slot.print(table.defaults);
    if (!row.limits().Allow(value)) {
      return absl::InternalError(absl::StrCat("default of --", row.name, " is ", value, ": ", row.limits().Sentence()));
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
