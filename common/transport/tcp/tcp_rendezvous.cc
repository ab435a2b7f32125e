#include "common/transport/tcp/tcp_rendezvous.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/host/machine_limits.h"
#include "common/network/address.h"
#include "common/transport/tcp/tcp_frames.h"
#include "common/transport/tcp/tcp_full_mesh.h"
#include "common/transport/tcp/tcp_transport.h"

namespace starring {
namespace {

absl::Status CheckAddress(const TcpRendezvousOptions& options) {
  ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(options.rendezvous), "--rendezvous");
  if (IsAnyHost(place.host)) {
    return absl::InvalidArgumentError(absl::StrCat("--rendezvous=", options.rendezvous,
                                                   " is no address that other ranks can dial: give an address of the "
                                                   "host on which rank 0 runs"));
  }
  if (place.port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rendezvous=", options.rendezvous, " has no port, which all ranks must know: give a free one"));
  }
  if (options.token.empty() && !options.insecure && !IsLoopbackHost(place.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--rendezvous=", options.rendezvous,
        " without a secret would let everyone on the network join: give all ranks --job_secret=FILE (deploy/launch "
        "--make_secret=FILE makes one), meet at 127.0.0.1, or accept it by --insecure"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRendezvousOptions(const TcpRendezvousOptions& options) {
  CHECK(options.tls == nullptr || !options.token.empty());
  if (options.world_size < 1 || options.world_size > kWorldSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", options.world_size, " is not between 1 and ", kWorldSizeMax));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not below the world size ", options.world_size));
  }
  if (options.server_count < 0 || options.server_count >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("of ", options.world_size, " processes ", options.server_count,
                                                   " are servers: at least one must be a worker"));
  }
  if (options.run_id.size() > kRunIdBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--run_id has ", options.run_id.size(), " bytes, at most ", kRunIdBytesMax, " are allowed"));
  }
  if (!IsPrintable(options.run_id)) {
    return absl::InvalidArgumentError("--run_id has control characters: choose another one");
  }
  // A rank that is alone dials no address, so its address may be anything.
  if (options.world_size == 1) return absl::OkStatus();
  RETURN_IF_ERROR(CheckAddress(options));
  // As many as rank 0 needs, which is dialled three times by each rank. Looked at before the first connection, because
  // a job that runs out of descriptors would fail in the middle of connecting.
  const int64_t connections = 3 * int64_t{options.world_size - 1} + kStrangerConnectionsMax;
  const int64_t needed = WorkerDescriptors(connections);
  if (const int64_t may_open = RaiseDescriptorLimit(needed); may_open < needed) {
    return absl::InvalidArgumentError(absl::StrCat(options.world_size, " ranks need ", needed,
                                                   " descriptors each, this process may open ", may_open,
                                                   ": raise the hard limit (ulimit -Hn), or start fewer ranks"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectFullMesh(TcpRendezvousOptions options) {
  // Only the listener knows a port that the system has chosen.
  if (options.listener.has_value()) options.rendezvous = options.listener->address();
  RETURN_IF_ERROR(CheckRendezvousOptions(options));
  const int rank = options.rank;
  const int server_count = options.server_count;
  int64_t unexpected_bytes_max = options.unexpected_bytes_max;
  const int silence_ms = TcpSilenceMs(options.exchange_deadline);
  // Links are by rank, so a rank that is alone has one, its own, which stays empty.
  std::vector<TcpTransport::Link> links(1);
  if (options.world_size > 1) {
    TcpFullMesh mesh(std::move(options));
    ASSIGN_OR_RETURN(links, mesh.Connect());
  }
  // Between workers and servers every receive of a gradient or of parameters is posted before the message leaves.
  if (unexpected_bytes_max == 0 && server_count > 0) unexpected_bytes_max = kTcpControlBytesMax;
  return TcpTransport::Create({.rank = rank,
                               .links = std::move(links),
                               .server_count = server_count,
                               .unexpected_bytes_max = unexpected_bytes_max,
                               .silence_ms = silence_ms});
}

}  // namespace starring
