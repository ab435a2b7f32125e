// Finds the rank that is chronically slower than the others: slowest in most of the last steps, by more than a fifth.
//
// Every rank keeps how long its own last steps took without the exchange, by phase, and shares the medians of them now
// and then (with the vote of stop_request.h: nothing is sent in a step for it). A median is not moved by one slow step.
// From what all shared, every rank finds the same straggler.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_STRAGGLER_WATCH_H_
#define STARRING_WORKER_STRAGGLER_WATCH_H_

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
  double percent = 0;  // how much longer its steps take than those of the others in the middle
  friend bool operator==(const Straggler&, const Straggler&) = default;
};

// A rank that was found slow, for as long as it was found so again and again.
struct StragglerRecord {
  Straggler straggler;  // as it was last found
  int64_t first_step = 0;
  int64_t last_step = 0;
};

// `straggler` was found at `step`: prolongs the last of `records` if it is of the same rank, else adds one, unless
// there are limits.h kStragglersRecordedMax.
void RecordStraggler(const Straggler& straggler, int64_t step, std::vector<StragglerRecord>* records);

class StragglerWatch {
 public:
  // Steps that count.
  static constexpr int64_t kWindowSteps = 200;
  // Numbers that a rank shares: the medians of its phases.
  static constexpr int kShared = 3;

  explicit StragglerWatch(int world_size) : world_size_(world_size) {}

  // A step of this rank has ended.
  void AddStep(const std::array<double, kStepPartCount>& part_seconds);
  // What this rank shares about the steps since it was last called.
  void Share(std::span<double> out);
  // What all ranks shared, by rank, about `steps` steps.
  void Take(int64_t steps, std::span<const double> all);

  std::optional<Straggler> Find() const;

 private:
  // Between two votes.
  struct Interval {
    int64_t steps = 0;
    std::optional<Straggler> slowest;  // null: no rank is slower than the others by enough
  };

  std::optional<Straggler> SlowestOf(std::span<const double> all) const;

  const int world_size_;
  std::array<std::vector<float>, kShared> seconds_;  // of this rank's last steps, by phase; at most a window
  size_t next_ = 0;                                  // which of them the next step takes the place of, once full
  std::deque<Interval> intervals_;                   // just enough for the window
  int64_t steps_ = 0;                                // in them
};

// "rank 1 is slow: its steps take 34 % longer than the others', most of it in forward"
std::string DescribeStraggler(const Straggler& straggler);

}  // namespace starring

#endif  // STARRING_WORKER_STRAGGLER_WATCH_H_
