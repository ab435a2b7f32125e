#include "worker/step/finite_check.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/array_passes.h"

namespace starring {

absl::Status CheckFinite(const Layout& layout, int64_t step_count, std::span<const float> vector,
                         const std::string& suffix) {
  const std::optional<int64_t> bad = FindNonFinite(vector);
  if (!bad.has_value()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "after step ", step_count - 1, " tensor ", std::string(layout.TensorAt(*bad)), suffix, " has ", vector[*bad],
      ": the gradients were finite, their sum or the update was not; nothing of it is saved; lower --learning_rate or "
      "look at the data, and continue from the last checkpoint with --resume"));
}

}  // namespace starring
