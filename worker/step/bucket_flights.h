// The buckets of this worker that are between Submit and Await, and the gradients that are checked before they leave.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_STEP_BUCKET_FLIGHTS_H_
#define STARRING_WORKER_STEP_BUCKET_FLIGHTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/bucket_map.h"
#include "common/layout.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/step/step_timer.h"

namespace starring {

class BucketFlights {
 public:
  struct Options {
    const BucketMap* buckets = nullptr;  // these outlive it
    const Layout* layout = nullptr;
    GradientExchange* exchange = nullptr;
    int rank = 0;                               // for messages
    StepPart exchange_part = StepPart::kOther;  // what the time in the exchange counts as
  };
  explicit BucketFlights(const Options& options);

  // Awaits the buckets in flight that `range` reaches into, and tells `arrived` of each.
  absl::Status Await(ElementRange range, StepTimer& timer, absl::FunctionRef<absl::Status(int bucket)> arrived);

  // InternalError that names rank, step and tensor if a gradient in `range` is NaN or infinite.
  absl::Status Check(int64_t step, ElementRange range, std::span<const float> gradients) const;
  // The error that Check makes of `element`, for who has found it otherwise; `what` it is.
  absl::Status NonFinite(int64_t step, int64_t element, const std::string& what) const;

  // The gradients of the whole parameter vector; those from `begin` on are final in `step` and stay untouched until
  // they were awaited. Submits the buckets that are complete by that and were not yet in this step.
  void SubmitFrom(int64_t begin, int64_t step, std::span<const float> gradients, StepTimer& timer);

 private:
  const Options options_;
  std::vector<int64_t> submitted_step_;  // by bucket: the step between Submit and Await, or -1
  int64_t step_ = -1;                    // of the last SubmitFrom
  int next_bucket_ = 0;                  // the first one that was not submitted in it
};

}  // namespace starring

#endif  // STARRING_WORKER_STEP_BUCKET_FLIGHTS_H_
