// The step and the phase that this process is in, and for how long. The thread that trains sets them; the thread that
// answers other processes reads them, so that a stuck job can say which rank keeps the others waiting.
//
// Cost: two relaxed stores for each phase; the caller has read the clock already.
//
// Thread safety: one thread enters phases, any thread may call Read.
#ifndef STARRING_COMMON_WATCH_PROGRESS_STATE_H_
#define STARRING_COMMON_WATCH_PROGRESS_STATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace starring {

// The numbers are also on the wire (parameter_server.proto, Progress.phase) and must not change.
enum class WorkPhase : uint8_t {
  kUnknown = 0,
  kStart = 1,
  kReadData = 2,
  kForward = 3,
  kBackward = 4,
  kExchange = 5,
  kEvaluation = 6,
  kCheckpoint = 7,
  kBetweenSteps = 8,
  kOutside = 9,  // of a process that knows only when it exchanges (worker/python): it does anything else
};
inline constexpr int kWorkPhaseCount = 10;

struct WorkState {
  WorkPhase phase = WorkPhase::kUnknown;
  int64_t step = -1;                 // -1: none yet
  int bucket = -1;                   // the bucket that it last submitted or awaited; -1: none yet
  std::chrono::milliseconds age{0};  // since the phase began
  int silent_shard = -1;             // a server that does not answer this process; -1: none
  friend bool operator==(const WorkState&, const WorkState&) = default;
};

// "in forward of step 12", "reading data for step 12".
std::string DescribeWork(const WorkState& state);

// Called at the beginning of every phase. Does nothing. A test that stops a process in a certain phase links another
// definition.
void OnWorkPhase(WorkPhase phase, int64_t step);

class ProgressState {
 public:
  using Clock = std::chrono::steady_clock;

  void set_step(int64_t step) { step_ = step; }
  void set_bucket(int bucket) {
    bucket_ = bucket;
    Publish();
  }
  void Enter(WorkPhase phase, Clock::time_point now) {
    phase_ = phase;
    Publish();
    since_ns_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    OnWorkPhase(phase, step_);
  }

  WorkState Read(Clock::time_point now) const;

 private:
  // Step, bucket and phase in one word, so that a reader never sees the step of one moment with the phase of another.
  // 40, 20 and 4 bits; limits.h kBucketCountMax is 2^16.
  void Publish() {
    packed_.store(static_cast<uint64_t>(step_ + 1) << 24 | static_cast<uint64_t>(bucket_ + 1) << 4 |
                      static_cast<uint64_t>(phase_),
                  std::memory_order_relaxed);
  }

  // ---- Used by the thread that trains.
  int64_t step_ = -1;
  int bucket_ = -1;
  WorkPhase phase_ = WorkPhase::kUnknown;

  std::atomic<uint64_t> packed_ = 0;
  std::atomic<int64_t> since_ns_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_WATCH_PROGRESS_STATE_H_
