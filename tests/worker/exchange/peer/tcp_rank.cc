// One process of a job over TCP, for tcp_processes_test.sh: a worker of a ring, or, with --server_count, a worker or a
// server of a star. Rank 0 listens at a free port of loopback and writes the address to --address_file, where the other
// ranks look for it.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "server/shard/shard_rank.h"
#include "tests/worker/exchange/peer/example_rank.h"
#include "worker/exchange/peer/peer_exchange.h"

ABSL_FLAG(int, rank, 0, "of this process");
ABSL_FLAG(int, world_size, 1, "workers of the job");
ABSL_FLAG(int, server_count, 0, "servers, which are the ranks after the workers");
ABSL_FLAG(bool, shared_memory, false, "a star in shared memory, instead of a ring; with servers, the star's memory");
ABSL_FLAG(bool, ring_memory, false, "the ring in shared memory");
ABSL_FLAG(std::string, address_file, "", "where rank 0 says at which address it listens");

namespace starring {
namespace {

absl::Status Listen(TcpRendezvousOptions& options) {
  ASSIGN_OR_RETURN(options.listener, TcpListener::Listen("127.0.0.1:0"));
  const std::string path = absl::GetFlag(FLAGS_address_file), unfinished = path + ".unfinished";
  std::ofstream(unfinished) << options.listener->address() << "\n";
  CHECK(rename(unfinished.c_str(), path.c_str()) == 0);
  return absl::OkStatus();
}

std::string ReadAddress() {
  std::string address;
  for (int i = 0; i < 2000 && address.empty(); ++i) {
    std::ifstream file(absl::GetFlag(FLAGS_address_file));
    if (!std::getline(file, address)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return address;
}

absl::Status Run() {
  const int rank = absl::GetFlag(FLAGS_rank);
  const int worker_count = absl::GetFlag(FLAGS_world_size);
  const int server_count = absl::GetFlag(FLAGS_server_count);
  TcpRendezvousOptions options = {.rank = rank,
                                  .world_size = worker_count + server_count,
                                  .server_count = server_count,
                                  .join_deadline = ExampleRankDeadline()};
  if (rank == 0) {
    RETURN_IF_ERROR(Listen(options));
  } else {
    options.rendezvous = ReadAddress();
  }
  const ExampleJob job = {
      .element_count = 200'000, .bucket_bytes = 1, .world_size = worker_count, .has_servers = server_count > 0};
  ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, ConnectFullMesh(std::move(options)));
  if (rank >= worker_count) {
    return ShardRank(std::move(transport), {.shard = rank - worker_count, .shard_count = server_count}).Run();
  }
  PeerExchange::Options peers = {.server_count = server_count};
  if (server_count > 0) {
    peers.algorithm = PeerExchange::Algorithm::kDedicated;
    if (absl::GetFlag(FLAGS_shared_memory)) peers.sharing = PeerExchange::HostSharing::kIfPossible;
  } else if (absl::GetFlag(FLAGS_ring_memory)) {
    peers.sharing = PeerExchange::HostSharing::kRequired;
  } else if (absl::GetFlag(FLAGS_shared_memory)) {
    peers.algorithm = PeerExchange::Algorithm::kDirect;
    peers.sharing = PeerExchange::HostSharing::kRequired;
  }
  auto exchange = std::make_unique<PeerExchange>(std::move(transport), peers);
  const absl::Status status = TrainExampleJob(*exchange, job, rank);
  // As the worker does.
  if (!exchange->Release()) static_cast<void>(exchange.release());
  return status;
}

int Main() {
  const absl::Status status = Run();
  if (status.ok()) {
    std::printf("rank %d: ok\n", absl::GetFlag(FLAGS_rank));
    return 0;
  }
  std::fprintf(stderr, "rank %d: %s\n", absl::GetFlag(FLAGS_rank), status.ToString().c_str());
  _exit(3);
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return starring::Main();
}
