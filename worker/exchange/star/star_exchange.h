// The star: gradients go to the shards of a parameter server, which add them, apply the optimizer and send the new
// parameters back. Every bucket is divided evenly among all shards.
//
// Cost per step and worker: the parameter vector travels once to the servers and once back, in slices of bucket_bytes
// divided by the number of servers, all in flight together. If all servers are on this machine, they read gradients and
// write parameters in memory that they share with the worker: nothing is copied if the trainer uses memory().gradients,
// and only small messages go through the socket.
//
// Threads: the trainer's thread while it waits, else the exchange thread (star_client.h), polls gRPC, sends, receives,
// and writes received parameters to their places.
#ifndef STARRING_WORKER_EXCHANGE_STAR_STAR_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_STAR_STAR_EXCHANGE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/cells.h"
#include "common/metrics/trace.h"
#include "common/security/transport_security.h"
#include "common/watch/stall_report.h"
#include "worker/exchange/gradient_exchange.h"

namespace starring {

struct StarOptions {
  std::vector<std::string> addresses;  // host:port of shard 0, 1, ...
  int lanes = 1;                       // connections to every shard
  std::string run_id;                  // equal on all workers of a run; may be empty
  TransportSecurity security = {};     // as the servers have it
  // How arrays travel if all servers are on this machine. Otherwise, and if memory cannot be shared, they go by socket.
  SameHost same_host = SameHost::kSharedMemory;
  Trace* trace = nullptr;  // outlives the exchange; null: there is none
  StallOptions stall;      // how this worker reports that it is stuck; lines are said by a thread of the exchange
  // In an elastic run: whether the generation is over. Asked by a thread of the exchange, which then fails. Null: the
  // run is not elastic.
  std::function<bool()> superseded;
};

// The exchange connects in Start. InvalidArgument if an option is wrong.
absl::StatusOr<std::unique_ptr<GradientExchange>> CreateStarExchange(const StarOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_STAR_EXCHANGE_H_
