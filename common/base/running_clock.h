// A clock that stands still while this process does not run: a scheduler or a person may stop a whole job and let it go
// on later. A deadline by this clock counts only time in which the process could have done something.
//
// A loop reads the clock several times a second. A longer time between two reads was a stop. A process that is stopped
// alone is not spared: the clocks of the processes that wait for it go on.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_BASE_RUNNING_CLOCK_H_
#define STARRING_COMMON_BASE_RUNNING_CLOCK_H_

#include <chrono>

namespace starring {

class RunningClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Ten times as long as the longest pause of a loop that reads the clock, so that a busy machine seldom reaches it.
  static constexpr std::chrono::milliseconds kStop{1000};

  // The clock shows `now` at `now`.
  explicit RunningClock(Time now) : last_(now) {}

  // Returns what the clock shows at `now` of the steady clock: `now` less all stops.
  Time Read(Time now) {
    if (now - last_ > kStop) stopped_ += now - last_;
    last_ = now;
    return now - stopped_;
  }

  // How long all stops have lasted.
  Time::duration stopped() const { return stopped_; }

 private:
  Time last_;
  Time::duration stopped_{0};
};

}  // namespace starring

#endif  // STARRING_COMMON_BASE_RUNNING_CLOCK_H_
