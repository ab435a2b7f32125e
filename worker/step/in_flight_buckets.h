// A worker's buckets between Submit and Await, and the search for numbers that are not finite.
//
// Every gradient is checked before it is submitted: a NaN that reached the other ranks could not be told from theirs.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_STEP_IN_FLIGHT_BUCKETS_H_
#define STARRING_WORKER_STEP_IN_FLIGHT_BUCKETS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/job/bucket_map.h"
#include "common/job/layout.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/step/step_timer.h"

namespace starring {

// The leaves that a gradient sums: a node of the worker's share (common/job/leaf_shares.h), or the whole share.
struct ShareNode {
  int number = 0;
  bool is_last = true;  // of the share: its buckets are awaited, and those of the others with them
};

// The round of the exchange in which `step` of the training is summed: every step is a round. This is the one place
// where steps become rounds.
inline int64_t RoundOf(int64_t step) { return step; }

class InFlightBuckets {
 public:
  struct Options {
    const BucketMap* buckets = nullptr;  // copied
    const Layout* layout = nullptr;      // this and the next outlive the object
    GradientExchange* exchange = nullptr;
    int rank = 0;                               // for error messages
    StepPart exchange_part = StepPart::kOther;  // the part of a step that time in the exchange belongs to
  };
  explicit InFlightBuckets(const Options& options);

  // From now on the vector is cut in other buckets. REQUIRES: all buckets were submitted and awaited, or none.
  void UseBuckets(const BucketMap& buckets);

  // Awaits every bucket in flight that has an element in `range`, and calls `arrived` for each.
  absl::Status Await(ElementRange range, StepTimer& timer, absl::FunctionRef<absl::Status(int bucket)> arrived);

  // Internal, naming rank, step and tensor, if a gradient in `range` is NaN or infinite.
  absl::Status Check(int64_t step, ElementRange range, std::span<const float> gradients) const;
  // The same error for a caller that found the element in another way; `value` is "nan", "inf" or the like, and the
  // gradient that of `rank`, or of this one.
  absl::Status NonFinite(int64_t step, int64_t element, const std::string& value,
                         std::optional<int> rank = std::nullopt) const;

  // `gradients` is as long as the parameter vector. Its elements from `begin` on are final in `step`, and must not
  // change until their buckets were awaited. Submits the buckets that are now complete and were not submitted for this
  // step and node.
  void SubmitFrom(int64_t begin, int64_t step, std::span<const float> gradients, StepTimer& timer, ShareNode node = {});

 private:
  const Options options_;
  BucketMap buckets_;
  std::vector<int64_t> submitted_step_;  // by bucket: its step if it is in flight, otherwise -1
  int64_t step_ = -1;                    // the last SubmitFrom's
  int node_ = 0;                         // the same call's
  int next_bucket_ = 0;                  // the first bucket that was not submitted for them
};

// Finite gradients do not guarantee finite parameters: their sum over the ranks, or the optimizer's update, may
// overflow. Internal if `vector`, which is as long as the parameter vector, has a NaN or an infinity. The message names
// the tensor, `suffix` (for an optimizer's vector) and the last of `step_count` steps.
absl::Status CheckFinite(const Layout& layout, int64_t step_count, std::span<const float> vector,
                         const std::string& suffix = "");

}  // namespace starring

#endif  // STARRING_WORKER_STEP_IN_FLIGHT_BUCKETS_H_
