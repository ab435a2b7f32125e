#include "common/base/printable.h"

#include <algorithm>

namespace starring {

std::string Printable(absl::string_view text) {
  std::string printable(text);
  std::replace_if(
      printable.begin(), printable.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return printable;
}

}  // namespace starring
