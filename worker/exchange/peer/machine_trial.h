// Measures how long a bucket machine takes for a part of a job, with memory and optimizer state of its own: nothing of
// the job changes.
//
// Thread safety: one thread at a time.
#ifndef STARRING_WORKER_EXCHANGE_PEER_MACHINE_TRIAL_H_
#define STARRING_WORKER_EXCHANGE_PEER_MACHINE_TRIAL_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/arithmetic/optimizer.h"
#include "common/job/bucket_map.h"
#include "common/job/layout.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

class MachineTrial {
 public:
  // Rounds before the first that counts, and rounds that count: all ranks run as many.
  static constexpr int kWarmUpRounds = 2;
  static constexpr int kRounds = 5;

  struct Options {
    BucketMap buckets;
    std::vector<std::vector<ElementRange>> slices;  // what this rank owns, as in OwnedSlices::Options
    OptimizerConfig optimizer;
    std::span<float> own_gradient;  // where the machine likes to find gradients; empty: anywhere
    int node_count = 1;             // of this rank's share (common/job/leaf_shares.h)
  };
  static absl::StatusOr<std::unique_ptr<MachineTrial>> Create(Options options);

  // Exchanges zeros, and returns this rank's median seconds of a round. Collective: all ranks make like machines.
  // `create` makes a machine with this object's buckets, owner and parameters. After an error the transport may still
  // use this object's memory.
  absl::StatusOr<double> Time(MessagePump& pump, absl::FunctionRef<std::unique_ptr<BucketMachine>()> create,
                              const CollectiveOptions& options);

  const BucketMap& buckets() const { return options_.buckets; }
  SliceOwner* owner() { return owner_.get(); }
  std::span<float> parameters() { return parameters_; }

 private:
  MachineTrial(Options options, OwnedSlices owned);
  absl::Status WaitUntilIdle(MessagePump& pump, const CollectiveOptions& options);

  const Options options_;
  std::vector<float> parameters_;
  std::vector<float> gradient_;  // empty: options_.own_gradient is used
  std::unique_ptr<SliceOwner> owner_;
  std::unique_ptr<BucketMachine> machine_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_MACHINE_TRIAL_H_
