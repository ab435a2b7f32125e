#include "common/wire/progress_message.h"

#include <algorithm>

namespace starring {

void SetProgress(const WorkState& state, v1::Progress* progress) {
  progress->set_phase(static_cast<int>(state.phase));
  progress->set_step(state.step + 1);
  progress->set_bucket(state.bucket + 1);
  progress->set_phase_ms(state.age.count());
  progress->set_silent_shard(state.silent_shard + 1);
}

WorkState GetProgress(const v1::Progress& progress) {
  const int phase = progress.phase() >= 0 && progress.phase() < kWorkPhaseCount ? progress.phase() : 0;
  return {.phase = static_cast<WorkPhase>(phase),
          .step = std::max<int64_t>(progress.step(), 0) - 1,
          .bucket = std::max(progress.bucket(), 0) - 1,
          .age = std::chrono::milliseconds(std::clamp<int64_t>(progress.phase_ms(), 0, int64_t{1} << 40)),
          .silent_shard = std::max(progress.silent_shard(), 0) - 1};
}

}  // namespace starring
