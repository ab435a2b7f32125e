// The losses of the steps that this process has computed. A step that is computed again, after a return to a snapshot,
// must have the same loss, bit for bit: it has the same samples and parameters.
//
// Which worker has computed otherwise is not known. The loss is a sum over all leaves, and a leaf may have had another
// worker before. So a third computation decides: a loss that comes twice is the step's.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_ELASTIC_LOSS_CHECK_H_
#define STARRING_WORKER_ELASTIC_LOSS_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/error_origin.h"

namespace starring {

class LossCheck {
 public:
  // Losses that are kept. A run goes back to one of the last snapshots, which are fractions of a second apart.
  static constexpr size_t kStepsMax = 100'000;

  // Internal with the mark kOtherLoss, naming both losses, if the step had another one before, and no computation of it
  // has had this one.
  absl::Status Check(int64_t step, double loss) {
    const auto [found, is_new] = losses_.emplace(step, Losses{.first = loss, .second = std::nullopt});
    if (losses_.size() > kStepsMax) losses_.erase(losses_.begin());
    if (is_new) return absl::OkStatus();
    Losses& before = found->second;
    if (loss == before.first || loss == before.second) {
      before = {.first = loss, .second = std::nullopt};
      return absl::OkStatus();
    }
    const absl::Status error = absl::InternalError(absl::StrCat(
        "step ", step, " was computed again, and its loss is ", loss, " where it was ", before.first,
        before.second.has_value() ? absl::StrCat(", and then ", *before.second) : "",
        ": the arithmetic of one of the run's machines is not what it was; test the memory of each, or run the job on "
        "each alone with --isa=baseline"));
    before.second = loss;
    return WithOrigin(error, {.kind = ErrorOrigin::Kind::kOtherLoss, .number = step});
  }

  // Nobody goes back behind this step.
  void Forget(int64_t step) { losses_.erase(losses_.begin(), losses_.lower_bound(step)); }

  size_t size() const { return losses_.size(); }

 private:
  struct Losses {
    double first = 0;
    std::optional<double> second;  // of another computation, which differed
  };
  std::map<int64_t, Losses> losses_;
};

}  // namespace starring

#endif  // STARRING_WORKER_ELASTIC_LOSS_CHECK_H_
