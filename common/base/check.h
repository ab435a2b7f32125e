// CHECK macros for the programmer's errors. They are on in release builds, print file, line, condition and both values,
// and abort. The world's errors (files, flags, peers) are absl::Status. A condition must have no side effects.
//
//   CHECK(rank >= 0) << "while reading " << path;
//   CHECK_EQ(gradient.size(), parameters.size());
//   CHECK_OK(status);
#ifndef STARRING_COMMON_BASE_CHECK_H_
#define STARRING_COMMON_BASE_CHECK_H_

#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/status/status.h"

namespace starring::check_internal {

// Collects the message; the end of the statement prints it on stderr and aborts.
class Failure {
 public:
  Failure(const char* file, int line, const std::string& what);
  [[noreturn]] ~Failure();
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

template <typename T>
void Print(std::ostream& out, const T& value) {
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else if constexpr (std::is_same_v<T, signed char> || std::is_same_v<T, unsigned char>) {
    out << static_cast<int>(value);
  } else if constexpr (std::is_null_pointer_v<T>) {
    out << "nullptr";
  } else {
    out << value;
  }
}

template <typename A, typename B>
[[gnu::noinline, gnu::cold]] std::unique_ptr<std::string> Difference(const char* text, const A& a, const B& b) {
  std::ostringstream out;
  out << text << " (";
  Print(out, a);
  out << " vs. ";
  Print(out, b);
  out << ")";
  return std::make_unique<std::string>(out.str());
}

// Signed and unsigned integers are compared by value, anything else by its own operators.
#define STARRING_CHECK_INTERNAL_OP(name, op, std_name)                                   \
  template <typename A, typename B>                                                      \
  std::unique_ptr<std::string> Compare##name(const char* text, const A& a, const B& b) { \
    bool holds;                                                                          \
    if constexpr (kComparesAsInteger<A> && kComparesAsInteger<B>) {                      \
      holds = std_name(a, b);                                                            \
    } else {                                                                             \
      holds = a op b;                                                                    \
    }                                                                                    \
    return ABSL_PREDICT_TRUE(holds) ? nullptr : Difference(text, a, b);                  \
  }
template <typename T>
inline constexpr bool kComparesAsInteger =
    std::is_integral_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char>;
STARRING_CHECK_INTERNAL_OP(EQ, ==, std::cmp_equal)
STARRING_CHECK_INTERNAL_OP(NE, !=, std::cmp_not_equal)
STARRING_CHECK_INTERNAL_OP(LT, <, std::cmp_less)
STARRING_CHECK_INTERNAL_OP(LE, <=, std::cmp_less_equal)
STARRING_CHECK_INTERNAL_OP(GT, >, std::cmp_greater)
STARRING_CHECK_INTERNAL_OP(GE, >=, std::cmp_greater_equal)
#undef STARRING_CHECK_INTERNAL_OP

}  // namespace starring::check_internal

// `while`, not `if`: no dangling else, and a message can be streamed in.
#define CHECK(condition)                   \
  while (ABSL_PREDICT_FALSE(!(condition))) \
  ::starring::check_internal::Failure(__FILE__, __LINE__, "CHECK failed: " #condition).stream()

#define STARRING_CHECK_OP(name, op, a, b)                                                             \
  while (const auto check_difference =                                                                \
             ::starring::check_internal::Compare##name("CHECK failed: " #a " " #op " " #b, (a), (b))) \
  ::starring::check_internal::Failure(__FILE__, __LINE__, *check_difference).stream()

#define CHECK_EQ(a, b) STARRING_CHECK_OP(EQ, ==, a, b)
#define CHECK_NE(a, b) STARRING_CHECK_OP(NE, !=, a, b)
#define CHECK_LT(a, b) STARRING_CHECK_OP(LT, <, a, b)
#define CHECK_LE(a, b) STARRING_CHECK_OP(LE, <=, a, b)
#define CHECK_GT(a, b) STARRING_CHECK_OP(GT, >, a, b)
#define CHECK_GE(a, b) STARRING_CHECK_OP(GE, >=, a, b)

#define CHECK_OK(expression)                                                                         \
  while (const auto check_failure =                                                                  \
             ::starring::check_internal::NotOk("CHECK failed: " #expression " is OK", (expression))) \
  ::starring::check_internal::Failure(__FILE__, __LINE__, *check_failure).stream()

namespace starring::check_internal {

std::unique_ptr<std::string> NotOk(const char* text, const absl::Status& status);
template <typename StatusOrT>
std::unique_ptr<std::string> NotOk(const char* text, const StatusOrT& status_or) {
  return NotOk(text, status_or.status());
}

}  // namespace starring::check_internal

#endif  // STARRING_COMMON_BASE_CHECK_H_
