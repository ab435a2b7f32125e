#include "common/arithmetic/learning_rate.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/deterministic_math.h"
#include "common/check.h"

namespace starring {

absl::Status ValidateSchedule(const LearningRateSchedule& schedule) {
  const auto refuse = [](const char* field, auto value, const std::string& allowed) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", it must be ", allowed));
  };
  if (!(schedule.base >= 0) || !std::isfinite(static_cast<float>(schedule.base))) {
    return refuse("learning rate", schedule.base, "a finite number of 0 or more");
  }
  if (schedule.warmup_steps < 0) return refuse("warmup_steps", schedule.warmup_steps, "0 or more");
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      return absl::OkStatus();
    case ScheduleKind::kStep:
      if (schedule.decay_steps < 1) return refuse("decay_steps", schedule.decay_steps, "1 or more for step decay");
      if (!(schedule.gamma > 0 && schedule.gamma <= 1)) return refuse("gamma", schedule.gamma, "above 0 and at most 1");
      return absl::OkStatus();
    case ScheduleKind::kCosine:
      if (schedule.total_steps > schedule.warmup_steps) return absl::OkStatus();
      return refuse("total_steps", schedule.total_steps,
                    absl::StrCat("more than warmup_steps (", schedule.warmup_steps, ") for a cosine"));
  }
  return refuse("schedule kind", static_cast<int>(schedule.kind), "constant, step or cosine");
}

float LearningRateAt(const LearningRateSchedule& schedule, int64_t step) {
  CHECK_GE(step, 0);
  if (step < schedule.warmup_steps) {
    return static_cast<float>(schedule.base * static_cast<double>(step + 1) /
                              static_cast<double>(schedule.warmup_steps));
  }
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      break;
    case ScheduleKind::kStep:
      return static_cast<float>(schedule.base * IntegerPower(schedule.gamma, step / schedule.decay_steps));
    case ScheduleKind::kCosine: {
      if (step >= schedule.total_steps) return 0;
      const double progress = static_cast<double>(step - schedule.warmup_steps) /
                              static_cast<double>(schedule.total_steps - schedule.warmup_steps);
      return static_cast<float>(schedule.base * 0.5 * (1 + CosinePi(progress)));
    }
  }
  return static_cast<float>(schedule.base);
}

}  // namespace starring
