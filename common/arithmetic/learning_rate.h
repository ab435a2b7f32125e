// The learning rate as a function of the step: linear warm-up, then constant, step decay or cosine.
// Cosine: Loshchilov and Hutter, SGDR (2017), equation 5, one period from the end of the warm-up down to 0 at
// total_steps. Step decay counts from step 0, warm-up included. No call to libm, whose last bit depends on the CPU:
// every owner of a slice computes the rate by itself, and all must get the same.
#ifndef STARRING_COMMON_ARITHMETIC_LEARNING_RATE_H_
#define STARRING_COMMON_ARITHMETIC_LEARNING_RATE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace starring {

enum class ScheduleKind { kConstant, kStep, kCosine };

struct LearningRateSchedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  double base = 0.01;
  int64_t warmup_steps = 0;  // step s < warmup_steps uses base * (s + 1) / warmup_steps
  int64_t decay_steps = 0;   // kStep: multiply by `gamma` every decay_steps steps
  double gamma = 0.1;        // kStep
  int64_t total_steps = 0;   // kCosine
  friend bool operator==(const LearningRateSchedule&, const LearningRateSchedule&) = default;
};

// InvalidArgument naming the field, its value and what is allowed.
absl::Status ValidateSchedule(const LearningRateSchedule& schedule);

// The rate of `step`, counted from 0 over the whole run.
float LearningRateAt(const LearningRateSchedule& schedule, int64_t step);

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_LEARNING_RATE_H_
