// CPU time of this process, all threads, over the stretches of wall time that are watched.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_REPORT_PROCESSOR_USE_H_
#define STARRING_WORKER_REPORT_PROCESSOR_USE_H_

#include <chrono>

namespace starring {

class ProcessorUse {
 public:
  // Begins a stretch; nothing if one is under way.
  void Resume();
  // Ends it; nothing if none is under way.
  void Pause();
  // CPU time over wall time, of the stretches that have ended: 100 is one core. 0 if there was none.
  double percent() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool watching_ = false;
  Clock::time_point wall_begin_;
  double cpu_begin_ = 0;
  double wall_seconds_ = 0;
  double cpu_seconds_ = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_REPORT_PROCESSOR_USE_H_
