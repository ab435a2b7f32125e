#include "worker/report/processor_use.h"

#include <time.h>

namespace starring {
namespace {

double ProcessSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

void ProcessorUse::Resume() {
  if (watching_) return;
  watching_ = true;
  wall_begin_ = Clock::now();
  cpu_begin_ = ProcessSeconds();
}

void ProcessorUse::Pause() {
  if (!watching_) return;
  watching_ = false;
  wall_seconds_ += std::chrono::duration<double>(Clock::now() - wall_begin_).count();
  cpu_seconds_ += ProcessSeconds() - cpu_begin_;
}

double ProcessorUse::percent() const { return wall_seconds_ > 0 ? 100 * cpu_seconds_ / wall_seconds_ : 0; }

}  // namespace starring
