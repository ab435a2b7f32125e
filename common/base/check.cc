#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace starring::check_internal {

Failure::Failure(const char* file, int line, const std::string& what) {
  message_ << file << ":" << line << ": " << what << " ";
}

Failure::~Failure() {
  // The message is one write, because several processes share a terminal and their lines would mix.
  const std::string text = message_.str() + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::abort();
}

std::unique_ptr<std::string> NotOk(const char* text, const absl::Status& status) {
  if (ABSL_PREDICT_TRUE(status.ok())) return nullptr;
  return std::make_unique<std::string>(absl::StrCat(text, " (", status.ToString(), ")"));
}

}  // namespace starring::check_internal
