// How a run ends early in good order: a signal asks, all ranks agree on a step, the trainer stops there.
#ifndef STARRING_WORKER_STOP_REQUEST_H_
#define STARRING_WORKER_STOP_REQUEST_H_

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/exchange/gradient_exchange.h"

namespace starring {

// SIGINT, SIGTERM and SIGUSR1 (what mpirun passes on) now count as a request to stop; one that comes a second or more
// after the first ends the process at once with exit code 130. Sooner it is the same wish: a service manager signals
// launcher and workers alike, and the launcher then signals the workers. Call once, before threads are started.
void InstallStopSignals();
bool StopRequested();

// Ranks see a signal at different steps, or only one of them sees it, and a rank that stopped alone would leave the
// others waiting. So they vote, with the exchange's Sum, every so many steps: a sum costs a round trip and is a
// barrier, hence the number is chosen, equally on all ranks, to make about one vote a second.
//
// Thread safety: one thread.
class StopVote {
 public:
  // Numbers that every rank gives along with its vote, for all to see: they need no sum of their own.
  struct Sharing {
    int rank = 0;
    int count = 0;                                // of each rank
    std::function<void(std::span<double>)> give;  // this rank's
    // All ranks', by rank, and the steps since the vote before.
    std::function<void(int64_t steps, std::span<const double> all)> take;
  };
  // `exchange` outlives the vote.
  StopVote(int world_size, int64_t first_step, GradientExchange* exchange, Sharing sharing);
  StopVote(int world_size, int64_t first_step, GradientExchange* exchange);

  // Called by every rank at the beginning of every step, with this rank's wish. True: all ranks stop before `step`.
  absl::StatusOr<bool> Agree(int64_t step, bool requested);

 private:
  const int world_size_;
  GradientExchange* const exchange_;
  const Sharing sharing_;
  int64_t last_vote_step_;
  int64_t next_vote_step_;
  absl::Time last_vote_time_;
};

}  // namespace starring

#endif  // STARRING_WORKER_STOP_REQUEST_H_
