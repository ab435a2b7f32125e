#include "worker/train/stop_request.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/host/stop_signals.h"

namespace starring {
namespace {

constexpr double kVoteInterval = 1.0;             // seconds
constexpr int64_t kVoteIntervalStepsMax = 10000;  // bounds the wait if a measured step was far too short
constexpr int64_t kFirstVoteSteps = 8;            // the first vote comes before the duration of a step is known

// A signal handler can reach only a global variable.
std::atomic<int64_t> first_stop_ns = 0;  // 0: none yet
static_assert(std::atomic<int64_t>::is_always_lock_free);

// A signal to a whole process group and the launcher's own signal come within this time and are one request.
constexpr int64_t kSecondSignalNs = 1'000'000'000;

void OnStopSignal(int) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);  // allowed in a handler, as lock-free atomics are
  const int64_t now_ns = now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  int64_t first_ns = 0;
  // The first signal only stores its time; the trainer does the rest between two steps. If the exchange fails, first_ns
  // has become the time that was there.
  if (first_stop_ns.compare_exchange_strong(first_ns, now_ns)) return;
  if (now_ns - first_ns >= kSecondSignalNs) _exit(130);
}

}  // namespace

void InstallStopSignals() {
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  // With this flag an interrupted read or write goes on. Without it the call could fail with EINTR inside a library.
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : StopSignals()) sigaction(signal, &action, nullptr);
}

void RestoreStopSignals() {
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) signal(number, SIG_DFL);
  if (!IgnoresHangUp()) signal(SIGHUP, SIG_DFL);
}

bool StopRequested() { return first_stop_ns > 0; }

StopVote::StopVote(int world_size, int64_t first_step, GradientExchange* exchange)
    : StopVote(world_size, first_step, exchange, Sharing()) {}

StopVote::StopVote(int world_size, int64_t first_step, GradientExchange* exchange, Sharing sharing)
    : world_size_(world_size),
      exchange_(exchange),
      sharing_(std::move(sharing)),
      last_vote_step_(first_step),
      next_vote_step_(first_step + kFirstVoteSteps),
      last_vote_time_(SteadyNow()) {}

absl::StatusOr<bool> StopVote::Agree(int64_t step, bool requested) {
  if (world_size_ == 1) return requested;
  // A request waits for the next vote: a rank that voted alone would wait for the others until the deadline.
  if (step < next_vote_step_) return false;
  const absl::Time now = SteadyNow();
  // A sum in which every rank has its own places, and zeros in those of other ranks, is a gather.
  std::vector<double> votes(2 + static_cast<size_t>(world_size_) * sharing_.count);
  votes[0] = requested ? 1.0 : 0.0;
  votes[1] = absl::ToDoubleSeconds(now - last_vote_time_);
  const std::span<double> shared = std::span(votes).subspan(2);
  if (sharing_.count > 0) {
    sharing_.give(shared.subspan(static_cast<size_t>(sharing_.rank) * sharing_.count, sharing_.count));
  }
  RETURN_IF_ERROR(exchange_->Sum(SumPurpose::kStopVote, votes));
  if (sharing_.count > 0) sharing_.take(step - last_vote_step_, shared);
  // The sums have the same bits on every rank, so every rank chooses the same step for the next vote.
  // The time since the last vote is a mean over the ranks, divided by the steps since then.
  const double step_seconds = votes[1] / world_size_ / static_cast<double>(step - last_vote_step_);
  const double steps = step_seconds > 0 ? kVoteInterval / step_seconds : static_cast<double>(kVoteIntervalStepsMax);
  last_vote_time_ = now;
  last_vote_step_ = step;
  next_vote_step_ =
      step + std::clamp<int64_t>(static_cast<int64_t>(std::min(steps, static_cast<double>(kVoteIntervalStepsMax))), 1,
                                 kVoteIntervalStepsMax);
  return votes[0] > 0;
}

}  // namespace starring
