// Declares the flags of a program: one table with everything that is known about each flag.
//
// A row has the flag's name, meaning, limits and the field of the program's options that holds its value; the default
// is that field's initial value. The row also says what the value means to the rest of the job: whether all ranks must
// have it alike, whether a resumed run may change it, whether the run record has it, and whether the PyTorch peer takes
// it.
// --help, the checks of single values, the agreement of the ranks, the check at --resume, the run record, the peer's
// command line and the pages' tables are all made from the rows. Checks that need several flags are the program's own.
#ifndef STARRING_COMMON_FLAGS_FLAG_TABLE_H_
#define STARRING_COMMON_FLAGS_FLAG_TABLE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/check.h"

namespace starring {

// The values that a flag may have.
struct FlagLimits {
  enum class Kind { kSwitch, kWhole, kReal, kChoice, kText };
  static constexpr size_t kChoicesMax = 8;

  Kind kind = Kind::kText;
  int64_t least = 0;  // kWhole
  uint64_t most = 0;
  absl::string_view word;  // kWhole: may be given instead of a number; empty: there is none
  double real_least = 0;   // kReal
  double real_most = 0;
  bool least_allowed = true;
  bool most_allowed = true;
  absl::string_view choices[kChoicesMax] = {};  // kChoice; the rest is empty
  absl::string_view what;                       // kText: "file", "folder", "host:port"

  // The way out in a refusal, the same in every program: "it must be a whole number from 1 to 16".
  std::string Sentence() const;
  // As --help shows them: "1 to 16".
  std::string Brief() const;
  // Whether `value`, as FlagSlot::print writes it, is within the limits.
  [[nodiscard]] bool Allow(absl::string_view value) const;
};

constexpr FlagLimits Switch() { return {.kind = FlagLimits::Kind::kSwitch}; }
// Both ends included.
constexpr FlagLimits Whole(int64_t least, uint64_t most) {
  return {.kind = FlagLimits::Kind::kWhole, .least = least, .most = most};
}
constexpr FlagLimits Real(double least, double most) {
  return {.kind = FlagLimits::Kind::kReal, .real_least = least, .real_most = most};
}
constexpr FlagLimits RealAbove(double below_least, double most) {
  FlagLimits limits = Real(below_least, most);
  limits.least_allowed = false;
  return limits;
}
constexpr FlagLimits RealBelow(double least, double above_most) {
  FlagLimits limits = Real(least, above_most);
  limits.most_allowed = false;
  return limits;
}
constexpr FlagLimits Text(absl::string_view what) { return {.kind = FlagLimits::Kind::kText, .what = what}; }
template <typename... Names>
constexpr FlagLimits OneOf(Names... names) {
  static_assert(sizeof...(names) >= 2 && sizeof...(names) <= FlagLimits::kChoicesMax);
  return {.kind = FlagLimits::Kind::kChoice, .choices = {names...}};
}

// A name that the command line has for a value.
template <typename Value>
struct Choice {
  const char* name;
  Value value;
};
template <typename Value, size_t N>
constexpr FlagLimits OneOf(const Choice<Value> (&choices)[N]) {
  static_assert(N >= 2 && N <= FlagLimits::kChoicesMax);
  FlagLimits limits = {.kind = FlagLimits::Kind::kChoice};
  for (size_t i = 0; i < N; ++i) limits.choices[i] = choices[i].name;
  return limits;
}
// REQUIRES: one of `choices` has that name.
template <typename Value, size_t N>
const Value& ValueOf(const Choice<Value> (&choices)[N], absl::string_view name) {
  const auto choice = std::ranges::find(choices, name, &Choice<Value>::name);
  CHECK(choice != std::end(choices)) << name;
  return choice->value;
}
// REQUIRES: one of `choices` has that value.
template <typename Value, size_t N>
const char* NameOf(const Choice<Value> (&choices)[N], const Value& value) {
  const auto choice = std::ranges::find(choices, value, &Choice<Value>::value);
  CHECK(choice != std::end(choices));
  return choice->name;
}

// Where a program keeps a flag's value, and what the value may be. Made by the functions below.
struct FlagSlot {
  // How JSON writes the value. kQuoted: a number in quotes, since most readers of JSON lose digits of large integers.
  enum class Json { kBool, kNumber, kQuoted, kText, kList };

  FlagLimits limits;
  // False if `text` is no value of the field's type. Does not look at the limits.
  bool (*parse)(absl::string_view text, void* options) = nullptr;
  // The value as `parse` reads it.
  std::string (*print)(const void* options) = nullptr;
  Json json = Json::kText;
  const std::type_info* holder = nullptr;  // the struct that `options` points to
};

// Rows of one table have fields of many types. So the templates below turn a path of pointers to members, known when
// the program is compiled, into functions that take the options by address.
namespace flag_internal {

inline constexpr absl::string_view kAutoWord = "auto";

template <typename Holder, typename Value>
Holder HolderOf(Value Holder::*);
template <auto kFirst, auto...>
struct PathHolder {
  using Type = decltype(HolderOf(kFirst));
};
template <auto... kPath>
using HolderOfPath = typename PathHolder<kPath...>::Type;

// The field at the end of a path of pointers to members: &WorkerOptions::optimizer, &OptimizerConfig::momentum.
template <typename Struct, typename Member, typename... Rest>
constexpr auto& Follow(Struct& object, Member member, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return object.*member;
  } else {
    return Follow(object.*member, rest...);
  }
}
template <auto... kPath>
const auto& FieldOf(const void* options) {
  return Follow(*static_cast<const HolderOfPath<kPath...>*>(options), kPath...);
}
template <auto... kPath>
auto& FieldOf(void* options) {
  return Follow(*static_cast<HolderOfPath<kPath...>*>(options), kPath...);
}
template <auto... kPath>
using ValueOfPath = std::remove_cvref_t<decltype(FieldOf<kPath...>(static_cast<void*>(nullptr)))>;

template <typename Value>
constexpr FlagSlot::Json JsonOf() {
  if (std::is_same_v<Value, bool>) return FlagSlot::Json::kBool;
  if (std::is_same_v<Value, uint64_t>) return FlagSlot::Json::kQuoted;
  if (std::is_arithmetic_v<Value>) return FlagSlot::Json::kNumber;
  if (std::is_same_v<Value, std::vector<std::string>>) return FlagSlot::Json::kList;
  return FlagSlot::Json::kText;
}

template <auto... kPath>
bool Parse(absl::string_view text, void* options) {
  std::string error;
  ValueOfPath<kPath...> value{};
  // A text that is refused leaves the field as it was; Abseil's parsers set a number to 0 first.
  if (!absl::ParseFlag(text, &value, &error)) return false;
  FieldOf<kPath...>(options) = std::move(value);
  return true;
}
template <auto... kPath>
std::string Print(const void* options) {
  const auto& value = FieldOf<kPath...>(options);
  if constexpr (std::is_same_v<ValueOfPath<kPath...>, absl::Duration>) {
    return AbslUnparseFlag(value);  // absl/time.h has another, deprecated absl::UnparseFlag
  } else {
    return absl::UnparseFlag(value);
  }
}
template <auto... kPath>
constexpr FlagSlot Slot(FlagLimits limits) {
  return {.limits = limits,
          .parse = &Parse<kPath...>,
          .print = &Print<kPath...>,
          .json = JsonOf<ValueOfPath<kPath...>>(),
          .holder = &typeid(HolderOfPath<kPath...>)};
}

template <auto... kPath>
bool ParseSeconds(absl::string_view text, void* options) {
  std::string error;
  int64_t seconds = 0;
  if (!absl::ParseFlag(text, &seconds, &error)) return false;
  FieldOf<kPath...>(options) = absl::Seconds(seconds);
  return true;
}
template <auto... kPath>
std::string PrintSeconds(const void* options) {
  return absl::UnparseFlag(absl::ToInt64Seconds(FieldOf<kPath...>(options)));
}

template <auto... kPath>
bool ParseWholeOrAuto(absl::string_view text, void* options) {
  std::string error;
  int64_t number = 0;
  if (text == kAutoWord) {
    FieldOf<kPath...>(options).reset();
    return true;
  }
  if (!absl::ParseFlag(text, &number, &error)) return false;
  FieldOf<kPath...>(options) = number;
  return true;
}
template <auto... kPath>
std::string PrintWholeOrAuto(const void* options) {
  const auto& value = FieldOf<kPath...>(options);
  return value.has_value() ? absl::UnparseFlag(*value) : std::string(kAutoWord);
}

template <const auto& kChoices, auto... kPath>
bool ParseChoice(absl::string_view text, void* options) {
  const auto choice = std::ranges::find(kChoices, text, [](const auto& each) { return absl::string_view(each.name); });
  if (choice == std::end(kChoices)) return false;
  FieldOf<kPath...>(options) = choice->value;
  return true;
}
template <const auto& kChoices, auto... kPath>
std::string PrintChoice(const void* options) {
  return NameOf(kChoices, FieldOf<kPath...>(options));
}

}  // namespace flag_internal

// Each takes the path to the field: SwitchAt<&WorkerOptions::resume>().
template <auto... kPath>
constexpr FlagSlot SwitchAt() {
  return flag_internal::Slot<kPath...>(Switch());
}
template <auto... kPath>
constexpr FlagSlot WholeAt(int64_t least, uint64_t most) {
  return flag_internal::Slot<kPath...>(Whole(least, most));
}
template <auto... kPath>
constexpr FlagSlot ValueAt(FlagLimits limits) {
  return flag_internal::Slot<kPath...>(limits);
}
// A string, a list of strings, or an absl::Duration with its unit.
template <auto... kPath>
constexpr FlagSlot TextAt(absl::string_view what) {
  return flag_internal::Slot<kPath...>(Text(what));
}
// An absl::Duration that the flag counts in seconds.
template <auto... kPath>
constexpr FlagSlot SecondsAt(int64_t least, uint64_t most) {
  return {.limits = Whole(least, most),
          .parse = &flag_internal::ParseSeconds<kPath...>,
          .print = &flag_internal::PrintSeconds<kPath...>,
          .json = FlagSlot::Json::kNumber,
          .holder = &typeid(flag_internal::HolderOfPath<kPath...>)};
}
// A std::optional<int64_t>, which is empty if the flag is "auto".
template <auto... kPath>
constexpr FlagSlot WholeOrAutoAt(int64_t least, uint64_t most) {
  FlagLimits limits = Whole(least, most);
  limits.word = flag_internal::kAutoWord;
  return {.limits = limits,
          .parse = &flag_internal::ParseWholeOrAuto<kPath...>,
          .print = &flag_internal::PrintWholeOrAuto<kPath...>,
          .json = FlagSlot::Json::kNumber,
          .holder = &typeid(flag_internal::HolderOfPath<kPath...>)};
}
// A value of one of kChoices, an array of Choice.
template <const auto& kChoices, auto... kPath>
constexpr FlagSlot OneOfAt() {
  return {.limits = OneOf(kChoices),
          .parse = &flag_internal::ParseChoice<kChoices, kPath...>,
          .print = &flag_internal::PrintChoice<kChoices, kPath...>,
          .json = FlagSlot::Json::kText,
          .holder = &typeid(flag_internal::HolderOfPath<kPath...>)};
}

// The meaning of a flag's value for the rest of the job. A row has any number of these traits.
enum FlagTrait : unsigned {
  // Compared among the ranks before the first step; a difference is refused. A flag has at most one of these three.
  kSameOnAllRanks = 1,   // the value, under the flag's name: JobSpec::agreed_flags
  kGivenOnAllRanks = 2,  // whether the flag is given: JobSpec::agreed_flags
  kInJobSpec = 4,        // the value, in a field of JobSpec that servers need too
  kSameWhenResumed = 8,  // a run that resumes from a checkpoint has the value of the run that wrote it
  kNotRecorded = 16,     // not in the run record
  kPeerTakes = 32,       // bench/ddp/train.py takes the flag too, with the same default and limits
  // The value is a path: the content under the path decides numbers, the path itself does not. The program compares the
  // content, among the ranks and with a checkpoint.
  kSameContent = 64,
  kSaidWhenResumed = 128,  // decides numbers, and a resumed run may have another value: the run then says so
};

struct FlagRow {
  absl::string_view name;
  absl::string_view topic;    // one word, for --help=TOPIC; rows of one topic are neighbours
  absl::string_view meaning;  // without default and limits, which --help adds
  FlagSlot slot;
  unsigned traits = 0;  // FlagTrait
  // The field with the value that the program works with, where that is another one than the flag's own: "auto" stays
  // in the flag's own field. Without a `print`, the program works with the flag's own field.
  FlagSlot resolved_slot = {};

  const FlagLimits& limits() const { return slot.limits; }
  const FlagSlot& resolved() const { return resolved_slot.print != nullptr ? resolved_slot : slot; }
  bool Has(FlagTrait trait) const { return (traits & trait) != 0; }
};

// The rows of a program, followed by those that it shares with other programs.
template <size_t A, size_t B>
constexpr std::array<FlagRow, A + B> JoinRows(const FlagRow (&own)[A], const std::array<FlagRow, B>& shared) {
  std::array<FlagRow, A + B> all = {};
  for (size_t i = 0; i < A; ++i) all[i] = own[i];
  for (size_t i = 0; i < B; ++i) all[A + i] = shared[i];
  return all;
}

struct FlagTable {
  absl::string_view program;
  absl::string_view purpose;  // one sentence
  std::span<const FlagRow> rows;
  const void* defaults = nullptr;  // options that no flag has changed
  const std::type_info* holder = nullptr;
  // A refusal of a name that is in no row says this: how to give such a flag to another program. Empty: nothing.
  std::string (*elsewhere)(absl::string_view name) = nullptr;

  // Null if `name` is not in the table.
  const FlagRow* Find(absl::string_view name) const;
};

// `defaults` and `rows` outlive the table.
template <typename Options>
FlagTable MakeFlagTable(absl::string_view program, absl::string_view purpose, std::span<const FlagRow> rows,
                        const Options* defaults) {
  return {.program = program, .purpose = purpose, .rows = rows, .defaults = defaults, .holder = &typeid(Options)};
}

// The flags that all ranks of a job must have alike, for JobSpec::agreed_flags.
std::vector<std::pair<std::string, std::string>> AgreedFlags(const FlagTable& table, const void* options);
// The flags that a resumed run must have as the run that wrote the checkpoint had them.
std::vector<std::pair<std::string, std::string>> ResumedFlags(const FlagTable& table, const void* options);
// The flags that may differ in a resumed run, which then says so.
std::vector<std::pair<std::string, std::string>> SaidFlags(const FlagTable& table, const void* options);

// `value`, as FlagSlot::print writes it, in JSON.
std::string FlagJson(FlagSlot::Json json, absl::string_view value);

// The text of --help: every flag with default, meaning and limits by topic, in lines of at most 120 characters. With a
// `word`, only flags of that topic or with that word in name or meaning; InvalidArgument if there are none.
absl::StatusOr<std::string> HelpText(const FlagTable& table, absl::string_view word);

// A table in Markdown of all flags with default, meaning, limits and traits, for a page. Begins and ends with the lines
// below, by which a program finds an older table to replace.
inline constexpr char kFlagsMarkdownBegin[] = "<!-- flags: written by bazel run //worker/options:flag_pages -->";
inline constexpr char kFlagsMarkdownEnd[] = "<!-- end of flags -->";
std::string FlagsMarkdown(const FlagTable& table);

// A line with name and comma for each flag, to include in an array of C++.
std::string FlagNames(const FlagTable& table);

// All recorded flags in JSON, for bench/ddp: name, meaning, default, limits, and whether the peer takes the flag.
std::string FlagsJson(const FlagTable& table);

// For the tests of each program. OK if no name is twice in the table, topics are together, all fields are of the
// program's options, and every default is within its limits.
absl::Status CheckFlagTable(const FlagTable& table);

// Why a program does not take `name`, which Abseil gives to every program; empty for another name.
absl::string_view WhyAbseilsFlagIsRefused(absl::string_view name);

}  // namespace starring

#endif  // STARRING_COMMON_FLAGS_FLAG_TABLE_H_
