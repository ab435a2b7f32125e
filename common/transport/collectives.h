// The collective operations of the exchange's start and end, and of Sum, over a message pump. All ranks make the same
// calls in the same order. All go through rank 0. Servers that are ranks of the world take part only where
// CollectiveOptions says so; "all ranks" then means them too.
//
// Cost: O(world_size) messages at rank 0; BroadcastFromRoot: O(bytes) on every link. Too slow for gradients.
//
// An expired deadline is DeadlineExceeded; the error names the missing ranks, and is sent to the peers. Ranks other
// than 0 wait two seconds longer. They wait for rank 0, which may wait for another rank and then names that rank.
#ifndef STARRING_COMMON_TRANSPORT_COLLECTIVES_H_
#define STARRING_COMMON_TRANSPORT_COLLECTIVES_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/message_pump.h"

namespace starring {

// The name of a collective in errors ("joining", "a sum over all ranks"), and how long the collective may take.
struct CollectiveOptions {
  std::string what;
  absl::Duration deadline = absl::InfiniteDuration();
  bool with_servers = false;  // servers that are ranks of the world take part as well, not only the workers
};

// Fills `all` of rank 0 with the `mine` of every rank, in the order of ranks. `all` has world_size * mine.size() bytes
// on rank 0 and is ignored on other ranks. REQUIRES: mine.size() is the same on all ranks.
absl::Status GatherToRoot(MessagePump& pump, ControlTag tag, std::span<const std::byte> mine, std::span<std::byte> all,
                          const CollectiveOptions& options);

// Replaces `data` on every rank by that of rank 0, which sends it to each rank. REQUIRES: data.size() is the same on
// all ranks.
absl::Status SendFromRoot(MessagePump& pump, ControlTag tag, std::span<std::byte> data,
                          const CollectiveOptions& options);

// The same for much data, in segments along the chain of ranks 0, 1, 2, ...: each link carries the data once. After an
// error `data` belongs to the pump until the pump is destroyed, as in Transfer.
absl::Status BroadcastFromRoot(MessagePump& pump, std::span<std::byte> data, const CollectiveOptions& options);

// GatherToRoot and SendFromRoot for texts, whose lengths may differ, up to kCollectiveTextBytesMax.
absl::StatusOr<std::vector<std::string>> GatherTextToRoot(MessagePump& pump, std::string_view mine,
                                                          const CollectiveOptions& options);
absl::Status SendTextFromRoot(MessagePump& pump, std::string& text, const CollectiveOptions& options);

// Copies `data` of rank `from` to `data` of rank `to`, in segments. Only these two ranks call it.
struct Route {
  int from = 0;
  int to = 0;
};
absl::Status Transfer(MessagePump& pump, Route route, std::span<std::byte> data, const CollectiveOptions& options);

// Returns when the operations are complete.
absl::Status AwaitAll(MessagePump& pump, std::span<const MessagePump::Token> tokens, const CollectiveOptions& options);

// Returns when every rank has called it.
absl::Status Barrier(MessagePump& pump, const CollectiveOptions& options);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_COLLECTIVES_H_
