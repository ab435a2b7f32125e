// Macros that pass a Status up with context. Abseil 20220623 has none.
//
//   RETURN_IF_ERROR(ReadHeader(&file));
//   RETURN_IF_ERROR(ReadHeader(&file), "reading ", path);            // message: "reading PATH: <the inner message>"
//   ASSIGN_OR_RETURN(const Layout layout, Layout::Create(specs), "model ", name);
//
// The context is evaluated only on an error.
#ifndef STARRING_COMMON_BASE_STATUS_H_
#define STARRING_COMMON_BASE_STATUS_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace starring {

// `status` with "context: " before its message; code and payloads stay. OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

}  // namespace starring

#define STARRING_STATUS_CONCAT_INNER(a, b) a##b
#define STARRING_STATUS_CONCAT(a, b) STARRING_STATUS_CONCAT_INNER(a, b)

#define STARRING_RETURN_IF_ERROR(name, expression, ...)                               \
  do {                                                                                \
    if (const absl::Status name = (expression); !name.ok()) {                         \
      return ::starring::Annotate(name, absl::StrCat("" __VA_OPT__(, ) __VA_ARGS__)); \
    }                                                                                 \
  } while (false)
#define RETURN_IF_ERROR(expression, ...) \
  STARRING_RETURN_IF_ERROR(STARRING_STATUS_CONCAT(status_, __COUNTER__), expression, __VA_ARGS__)

// `declaration` is a variable or its declaration; one whose type holds a comma needs parentheses or auto.
#define STARRING_ASSIGN_OR_RETURN(name, declaration, expression, ...)                        \
  auto name = (expression);                                                                  \
  if (!name.ok()) {                                                                          \
    return ::starring::Annotate(name.status(), absl::StrCat("" __VA_OPT__(, ) __VA_ARGS__)); \
  }                                                                                          \
  declaration = std::move(name).value()
#define ASSIGN_OR_RETURN(declaration, expression, ...) \
  STARRING_ASSIGN_OR_RETURN(STARRING_STATUS_CONCAT(status_or_, __COUNTER__), declaration, expression, __VA_ARGS__)

#endif  // STARRING_COMMON_BASE_STATUS_H_
