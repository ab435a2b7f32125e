// Finds a *straggler*: the rank that was the slowest in most of the last steps, by more than a fifth.
//
// Every rank records how long its last steps took without the exchange, by phase, and shares the medians with each vote
// of stop_request.h, so that no step sends a message for it. One slow step does not move a median. All ranks get the
// same numbers and so find the same straggler.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_TRAIN_STRAGGLER_WATCH_H_
#define STARRING_WORKER_TRAIN_STRAGGLER_WATCH_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/step/step_timer.h"

namespace starring {

struct Straggler {
  int rank = 0;
  std::string phase;   // in which it loses most: "reading data", "forward" or "backward"
  double percent = 0;  // how much longer its steps take than the median of the other ranks' steps
  friend bool operator==(const Straggler&, const Straggler&) = default;
};

// A straggler, and the steps during which it was found again and again.
struct StragglerRecord {
  Straggler straggler;  // as it was last found
  int64_t first_step = 0;
  int64_t last_step = 0;
};

// Records that `straggler` was found at `step`: extends the last of `records` if it has the same rank; otherwise adds a
// record, unless there are kStragglersRecordedMax (limits.h) already.
void RecordStraggler(const Straggler& straggler, int64_t step, std::vector<StragglerRecord>* records);

class StragglerWatch {
 public:
  // Only the last steps count, this many.
  static constexpr int64_t kWindowSteps = 200;
  // How many numbers a rank shares: the medians of its phases.
  static constexpr int kShared = 3;

  explicit StragglerWatch(int world_size) : world_size_(world_size) {}

  // A step of this rank has ended.
  void AddStep(const std::array<double, kStepPartCount>& part_seconds);
  // Fills `out` with the numbers that this rank shares about the steps since the last call.
  void Share(std::span<double> out);
  // Takes the numbers that all ranks shared about `steps` steps, in the order of ranks.
  void Take(int64_t steps, std::span<const double> all);

  std::optional<Straggler> Find() const;

 private:
  // The steps between two votes.
  struct Interval {
    int64_t steps = 0;
    std::optional<Straggler> slowest;  // null: no rank is that much slower than the others
  };

  std::optional<Straggler> SlowestOf(std::span<const double> all) const;

  const int world_size_;
  std::array<std::vector<float>, kShared> seconds_;  // of this rank's last steps, by phase; at most a window
  size_t next_ = 0;                                  // the place of the next step, once the window is full
  std::deque<Interval> intervals_;                   // as many as the window needs
  int64_t steps_ = 0;                                // steps in intervals_
};

// "rank 1 is slow: its steps take 34 % longer than the others', most of it in forward"
std::string DescribeStraggler(const Straggler& straggler);

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_STRAGGLER_WATCH_H_
