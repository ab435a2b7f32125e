// The exchange of a job with one worker, which owns every element: Submit applies the optimizer in place, unless the
// training step does (worker/step/cuda_local_optimizer.h). With --clip_norm, a round's first Await does.
#ifndef STARRING_WORKER_EXCHANGE_LOCAL_LOCAL_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_LOCAL_LOCAL_EXCHANGE_H_

#include <memory>

#include "common/metrics/trace.h"
#include "worker/exchange/gradient_exchange.h"

namespace starring {

// Whether the exchange or the training step applies the optimizer. kTrainingStep: the exchange has no optimizer state;
// Submit and GatherOptimizerState are not called.
enum class LocalUpdates { kExchange, kTrainingStep };

// Start fails with InvalidArgument unless job.world_size is 1. The bits are those of a ring or a star with one worker.
// `track`: the trainer's trace track; may be null.
[[nodiscard]] std::unique_ptr<GradientExchange> CreateLocalExchange(TraceTrack* track = nullptr,
                                                                    LocalUpdates updates = LocalUpdates::kExchange);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_LOCAL_LOCAL_EXCHANGE_H_
