// How long the launcher waits before it starts a job again.
//
// Thread safety: one thread.
#ifndef STARRING_DEPLOY_LAUNCH_RESTART_PAUSE_H_
#define STARRING_DEPLOY_LAUNCH_RESTART_PAUSE_H_

#include <algorithm>
#include <chrono>

namespace starring {

// An attempt that ends as soon as it has begun will probably do so again: its cause needs a moment to pass. So the
// first restart comes at once, and each further one waits twice as long as the one before, until an attempt lasts.
class RestartPause {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kSoon{3};  // an attempt that takes so long has lasted
  static constexpr std::chrono::milliseconds kPauseMin{250};
  static constexpr std::chrono::milliseconds kPauseMax{8000};

  // How long to wait after an attempt that took so long.
  std::chrono::milliseconds After(Clock::duration attempt) {
    if (attempt >= kSoon) pause_ = std::chrono::milliseconds(0);
    const std::chrono::milliseconds pause = pause_;
    pause_ = std::clamp(2 * pause_, kPauseMin, kPauseMax);
    return pause;
  }

 private:
  std::chrono::milliseconds pause_{0};
};

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_RESTART_PAUSE_H_
