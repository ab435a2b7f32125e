// The messages, apart from gradients, between a worker and the servers of a dedicated star that are ranks of its world.
// star_machine.h has the gradients, common/transport/shard_wire.h the messages' formats, server/shard/shard_rank.h
// the other end.
//
// Every call is collective over the workers, blocks, and has a deadline; an error has been sent to the peers, or is
// known to them. After an error the spans belong to the pump until it is destroyed.
#ifndef STARRING_WORKER_EXCHANGE_PEER_SERVER_RANKS_H_
#define STARRING_WORKER_EXCHANGE_PEER_SERVER_RANKS_H_

#include <chrono>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/job/job_spec.h"
#include "common/transport/message_pump.h"

namespace starring {

// Sends every server this worker's agreement, which the server compares with those of the other workers. The servers'
// verdicts come with GatherTextToRoot (with_servers).
struct ServerJoin {
  std::string agreement;  // SerializeAgreement
  std::chrono::milliseconds stall_report{0};
  bool shares_memory = false;  // the next collective is HostMemory::Meet, of all processes
};
absl::Status JoinServers(MessagePump& pump, const JobSpec& job, const ServerJoin& mine);

// Rank 0 sends every server its part of job.optimizer_state, if there is any, and of `parameters`. Returns when all
// servers take contributions.
absl::Status SendStartToServers(MessagePump& pump, const JobSpec& job, std::span<const float> parameters);

// As GradientExchange::GatherOptimizerState, at rank 0; the other workers do nothing.
absl::Status FetchStateFromServers(MessagePump& pump, const JobSpec& job, std::span<const std::span<float>> state);

// Tells the servers that this worker has finished; returns when all workers have.
absl::Status FinishAtServers(MessagePump& pump, const JobSpec& job);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_SERVER_RANKS_H_
