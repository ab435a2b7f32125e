// Text of other processes, as it may be written to a terminal or a log.
#ifndef STARRING_COMMON_BASE_PRINTABLE_H_
#define STARRING_COMMON_BASE_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace starring {

// `text` with a question mark instead of each byte that is no printable ASCII character. Whoever sent the text could
// otherwise send a terminal's commands, or begin a line that seems to be another process's.
std::string Printable(absl::string_view text);

}  // namespace starring

#endif  // STARRING_COMMON_BASE_PRINTABLE_H_
