// The few collective operations of the exchange's start and end, over a message pump. All go through rank 0. Cost:
// O(world_size) messages at rank 0, or O(bytes) on every link for BroadcastFromRoot: none of them belongs in a step's
// path but a Sum now and then.
//
// An expired deadline is DeadlineExceeded, names who is missing, and is told to the peers. Ranks other than 0 wait a
// little longer, since they wait for rank 0, which may wait for somebody else.
#ifndef STARRING_WORKER_EXCHANGE_PEER_COLLECTIVES_H_
#define STARRING_WORKER_EXCHANGE_PEER_COLLECTIVES_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/exchange/peer/message_pump.h"

namespace starring {

// What a collective is called in errors ("joining", "a sum over all ranks") and how long it may take.
struct CollectiveOptions {
  std::string what;
  absl::Duration deadline = absl::InfiniteDuration();
};

// Rank 0 leaves with all ranks' `mine`, by rank; `all` holds world_size * mine.size() bytes there and is not looked at
// elsewhere. REQUIRES: mine.size() is the same everywhere.
absl::Status GatherToRoot(MessagePump& pump, ControlTag tag, std::span<const std::byte> mine, std::span<std::byte> all,
                          const CollectiveOptions& options);

// Everybody leaves with rank 0's `data`; the size is the same everywhere. Straight from rank 0 to each.
absl::Status SendFromRoot(MessagePump& pump, ControlTag tag, std::span<std::byte> data,
                          const CollectiveOptions& options);

// The same for much data: segments travel along the chain 0, 1, 2, ... After an error `data` belongs to the pump until
// that is destroyed; so it does in Transfer.
absl::Status BroadcastFromRoot(MessagePump& pump, std::span<std::byte> data, const CollectiveOptions& options);

// GatherToRoot and SendFromRoot for texts, whose lengths may differ.
absl::StatusOr<std::vector<std::string>> GatherTextToRoot(MessagePump& pump, std::string_view mine,
                                                          const CollectiveOptions& options);
absl::Status SendTextFromRoot(MessagePump& pump, std::string& text, const CollectiveOptions& options);

// `data` of rank `from` arrives in `data` of rank `to`, in segments; only these two call it.
struct Route {
  int from = 0;
  int to = 0;
};
absl::Status Transfer(MessagePump& pump, Route route, std::span<std::byte> data, const CollectiveOptions& options);

// Returns when every rank has called it.
absl::Status Barrier(MessagePump& pump, const CollectiveOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_COLLECTIVES_H_
