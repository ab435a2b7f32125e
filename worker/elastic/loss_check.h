// The losses of the steps that this process has computed. A step that is computed again, after a return to a snapshot,
// must have the same loss, bit for bit: it has the same samples and parameters.
//
// Who computed otherwise is not known. The loss is a sum over all leaves, and a leaf may have had another worker
// before.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_ELASTIC_LOSS_CHECK_H_
#define STARRING_WORKER_ELASTIC_LOSS_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace starring {

class LossCheck {
 public:
  // Losses that are kept. A run goes back to one of the last snapshots, which are fractions of a second apart.
  static constexpr size_t kStepsMax = 100'000;

  // Internal, naming both losses, if the step had another one before.
  absl::Status Check(int64_t step, double loss) {
    const auto [found, is_new] = losses_.emplace(step, loss);
    if (losses_.size() > kStepsMax) losses_.erase(losses_.begin());
    if (is_new || found->second == loss) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        "step ", step, " was computed again, and its loss is ", loss, " where it was ", found->second,
        ": the arithmetic of one of the run's machines is not what it was; test the memory of each, or run the job on "
        "each alone with --isa=baseline"));
  }

  // Nobody goes back behind this step.
  void Forget(int64_t step) { losses_.erase(losses_.begin(), losses_.lower_bound(step)); }

  size_t size() const { return losses_.size(); }

 private:
  std::map<int64_t, double> losses_;
};

}  // namespace starring

#endif  // STARRING_WORKER_ELASTIC_LOSS_CHECK_H_
