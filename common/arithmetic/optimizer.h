// One update of the parameters: the learning rate of a step, the optimizer, and the two functions of mathematics that
// they need.
//
// Every owner of a slice updates its slice by itself, on whatever machine it runs, and all owners must get the same
// bits. Therefore nothing here calls libm, whose last bit depends on the processor and on the library's version, and
// users are compiled with -ffp-contract=off.
//
// Thread safety: pure functions over spans that the caller owns.
#ifndef STARRING_COMMON_ARITHMETIC_OPTIMIZER_H_
#define STARRING_COMMON_ARITHMETIC_OPTIMIZER_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "common/arithmetic/instruction_set.h"

namespace starring {

enum class ScheduleKind { kConstant, kStep, kCosine };

// The learning rate as a function of the step: a linear warm-up, then constant, step decay or cosine. The cosine is
// equation 5 of Loshchilov and Hutter, SGDR (2017), with one period from the end of the warm-up down to 0 at
// total_steps. Step decay counts from step 0, warm-up included.
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

// The rate of `step`, counted from 0 over the whole run. REQUIRES: the schedule is valid, step >= 0.
float LearningRateAt(const LearningRateSchedule& schedule, int64_t step);

enum class OptimizerKind { kSgd, kAdamW };

// Optimizers with PyTorch's semantics: torch.optim.SGD (momentum, dampening 0, Nesterov, weight decay added to the
// gradient) and torch.optim.AdamW (decoupled weight decay: Loshchilov and Hutter, 2019, algorithm 2). Doubles, as in
// PyTorch: 1 - 0.999f is off by 1e-5.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0;    // kSgd, in [0, 1)
  bool nesterov = false;  // kSgd, needs momentum > 0
  double weight_decay = 0;
  double beta1 = 0.9;     // kAdamW, in [0, 1)
  double beta2 = 0.999;   // kAdamW, in [0, 1)
  double epsilon = 1e-8;  // kAdamW, above 0 in float32 too: alignment gaps must not become 0 / 0
  // Above 0: the caller scales the whole gradient by ClipFactor (common/arithmetic/gradient_norm.h) before an update.
  // An update of a part cannot do that.
  double clip_norm = 0;
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

// InvalidArgument naming the field, its value and what is allowed.
absl::Status ValidateOptimizer(const OptimizerConfig& config);

// State vectors as long as the parameters: 0 (SGD without momentum), 1 (momentum_buffer) or 2 (exp_avg, exp_avg_sq).
int StateVectorCount(const OptimizerConfig& config);
// PyTorch's name of state vector i.
std::string_view StateVectorName(const OptimizerConfig& config, int i);

// REQUIRES: all spans have one length; state.size() == StateVectorCount(config); no two spans overlap, but
// parameters_out may be parameters_in.
struct UpdateArgs {
  float learning_rate = 0;
  int64_t update = 1;  // counts from 1, for AdamW's bias correction
  std::span<const float> gradient;
  std::span<const float> parameters_in;
  std::span<float> parameters_out;
  std::span<const std::span<float>> state;  // state[i] is state vector i, which is updated in place
};
// Ends the process where a REQUIRES above does not hold, overlaps excepted.
void ValidateUpdate(const OptimizerConfig& config, const UpdateArgs& args);

// Writes parameters_out and the state. The result of an element depends on that element's inputs alone: not on its
// position, not on the spans' alignment or length, and not on the instruction set.
void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args, InstructionSet set = BestInstructionSet());

// base^exponent by squaring; the relative error is below 1e-15 * log2(exponent) for bases near 1.
// REQUIRES: exponent >= 0.
double IntegerPower(double base, int64_t exponent);

// cos(pi * x) with an error below 1e-15. REQUIRES: 0 <= x <= 1.
double CosinePi(double x);

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_OPTIMIZER_H_
