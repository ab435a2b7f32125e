// The table of a program's flags: topic and limits of each, in one place.
//
// ABSL_FLAG has a flag's type, default and meaning; its row here has the rest. From both come --help and every check of
// a single value; checks that need several flags are the program's own. A flag without a row is unknown to ParseFlags.
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/check.h"

namespace starring {

// What the value of a flag may be.
struct FlagLimits {
  enum class Kind { kSwitch, kWhole, kReal, kChoice, kText };
  static constexpr size_t kChoicesMax = 8;

  Kind kind = Kind::kText;
  int64_t least = 0;  // kWhole
  uint64_t most = 0;
  double real_least = 0;  // kReal
  double real_most = 0;
  bool least_allowed = true;
  bool most_allowed = true;
  absl::string_view choices[kChoicesMax] = {};  // kChoice; the rest is empty
  absl::string_view what;                       // kText: "file", "folder", "host:port"

  // Every program checks its values with these words: "a whole number from 1 to 16".
  std::string Sentence() const;
  // As --help shows them: "1 to 16".
  std::string Brief() const;
  // Whether `value`, as CommandLineFlag::CurrentValue writes it, is within the limits.
  bool Allow(absl::string_view value) const;
};

constexpr FlagLimits Switch() { return {.kind = FlagLimits::Kind::kSwitch}; }
// Both ends included.
constexpr FlagLimits Whole(int64_t least, uint64_t most) {
  return {.kind = FlagLimits::Kind::kWhole, .least = least, .most = most};
}
constexpr FlagLimits AnyWhole() { return Whole(0, std::numeric_limits<uint64_t>::max()); }
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

// One of the names that a flag may have, and what the program makes of it.
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
// REQUIRES: one of `choices` has that name, as ParseFlags sees to where the flag's row is OneOf(choices).
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

struct FlagRow {
  absl::string_view name;
  absl::string_view topic;  // one word, for --help=TOPIC; rows of one topic are neighbours
  FlagLimits limits;
};

// The rows of a program and those that it shares with others.
template <size_t A, size_t B>
constexpr std::array<FlagRow, A + B> JoinRows(const FlagRow (&own)[A], const FlagRow (&shared)[B]) {
  std::array<FlagRow, A + B> all = {};
  for (size_t i = 0; i < A; ++i) all[i] = own[i];
  for (size_t i = 0; i < B; ++i) all[A + i] = shared[i];
  return all;
}

struct FlagTable {
  absl::string_view program;
  absl::string_view purpose;  // one sentence
  std::span<const FlagRow> rows;

  // Null if `name` is not in the table.
  const FlagRow* Find(absl::string_view name) const;
};

// What --help prints: every flag with default, meaning and limits by topic, in lines of at most 120 characters. With a
// `word`, only flags of that topic or with that word in name or meaning; InvalidArgument if there are none.
// REQUIRES: every row has its ABSL_FLAG.
absl::StatusOr<std::string> HelpText(const FlagTable& table, absl::string_view word);

// For the tests of each program. OK if each flag of the process but Abseil's own has exactly one row, each row its
// flag, topics are together, and every default is within its limits.
absl::Status CheckFlagTable(const FlagTable& table);

// Why a program does not take `name`, which Abseil gives to every program; empty for another name.
absl::string_view WhyAbseilsFlagIsRefused(absl::string_view name);

}  // namespace starring

#endif  // STARRING_COMMON_FLAGS_FLAG_TABLE_H_
