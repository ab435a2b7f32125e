// Whether all ranks of a job hold the same parameters.
#ifndef STARRING_WORKER_TRAIN_RANKS_AGREE_H_
#define STARRING_WORKER_TRAIN_RANKS_AGREE_H_

#include <string>

#include "absl/status/status.h"
#include "worker/exchange/gradient_exchange.h"

namespace starring {

// Collective: every rank passes the SHA-256 (hexadecimal) of its parameters. Internal, on every rank alike, naming the
// ranks that differ from rank 0. Costs two sums.
absl::Status CheckRanksAgree(const std::string& sha256, int rank, int world_size, GradientExchange* exchange);

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_RANKS_AGREE_H_
