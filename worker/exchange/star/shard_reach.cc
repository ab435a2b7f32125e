#include "worker/exchange/star/shard_reach.h"

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/steady_time.h"
#include "common/base/wall_time.h"
#include "common/wire/grpc_transport.h"

namespace starring {

absl::Status Reach(const std::vector<std::string>& shards, const TransportSecurity& security, absl::Duration deadline) {
  const absl::Time end = SteadyNow() + deadline;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (const std::string& address : shards) {
    channels.push_back(OpenChannel(address, security));
    channels.back()->GetState(/*try_to_connect=*/true);
  }
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    // gRPC's deadlines are of the wall clock; ours is of the steady one.
    if (channels[shard]->WaitForConnected(WallTimeOf(end))) continue;
    const bool fails = channels[shard]->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_TRANSIENT_FAILURE;
    return absl::UnavailableError(absl::StrCat("server ", shards[shard], " (shard ", shard,
                                               ") cannot be reached within ", absl::FormatDuration(deadline), ": ",
                                               fails ? "connections to it fail" : "it does not answer"));
  }
  return absl::OkStatus();
}

}  // namespace starring
