// How a run ends early in good order: a signal asks, all ranks agree on a step, the trainer stops there.
#ifndef STARRING_WORKER_TRAIN_STOP_REQUEST_H_
#define STARRING_WORKER_TRAIN_STOP_REQUEST_H_

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/exchange/gradient_exchange.h"

namespace starring {

// From now on each signal of StopSignals is a request to stop. A signal that comes a second or more after the first one
// ends the process at once with exit code 130. An earlier one counts as the same request: a service manager signals
// both launcher and workers, and the launcher then signals the workers again. To be called once, before threads are
// started.
void InstallStopSignals();
// From now on such a signal ends the process.
void RestoreStopSignals();
// A request has come since then.
[[nodiscard]] bool StopRequested();

// Ranks see a signal at different steps, or only one of them sees it, and a rank that stopped alone would leave the
// others waiting. So they vote, with the exchange's Sum, once in a number of steps. A sum costs a round trip and is a
// barrier; therefore the number is chosen, equally on all ranks, so that there is about one vote a second.
//
// Thread safety: one thread.
class StopVote {
 public:
  // Numbers that every rank sends with its vote to all ranks, so that they need no sum of their own.
  struct Sharing {
    int rank = 0;
    int count = 0;                                // how many numbers each rank sends
    std::function<void(std::span<double>)> give;  // fills in this rank's numbers
    // Takes the numbers of all ranks, in the order of ranks, and the number of steps since the last vote.
    std::function<void(int64_t steps, std::span<const double> all)> take;
  };
  // `exchange` outlives the vote.
  StopVote(int world_size, int64_t first_step, GradientExchange* exchange, Sharing sharing);
  StopVote(int world_size, int64_t first_step, GradientExchange* exchange);

  // Called by every rank at the beginning of every step. `requested`: this rank wants to stop. True: all ranks stop
  // before `step`.
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

#endif  // STARRING_WORKER_TRAIN_STOP_REQUEST_H_
