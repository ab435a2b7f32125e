#include "common/arithmetic/optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace starring {
namespace {

// Parameters in and out may be one array: an element's inputs are read before its output is written. That is what the
// ivdep below promises the compiler, which otherwise would not vectorise. Each input is read once into a local: after a
// store to another array the compiler would have to load it again.
struct SgdArgs {
  int64_t count;
  const float* gradient;
  const float* in;
  float* out;
  float* momentum_buffer;
  float learning_rate, momentum, weight_decay;
};

[[gnu::always_inline]] inline void PlainSgdLoop(const SgdArgs& args) {
  const auto [count, gradient, in, out, buffer, rate, momentum, decay] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] = in[i] - rate * (gradient[i] + decay * in[i]);
}

// The buffer is 0 at first, so the first update makes it the gradient, as PyTorch does.
[[gnu::always_inline]] inline void MomentumLoop(const SgdArgs& args) {
  const auto [count, gradient, in, out, buffer, rate, momentum, decay] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float parameter = in[i];
    const float direction = momentum * buffer[i] + (gradient[i] + decay * parameter);
    buffer[i] = direction;
    out[i] = parameter - rate * direction;
  }
}

// PyTorch's form: the update looks ahead by one more step of the velocity that it has just computed.
[[gnu::always_inline]] inline void NesterovLoop(const SgdArgs& args) {
  const auto [count, gradient, in, out, buffer, rate, momentum, decay] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float parameter = in[i];
    const float decayed = gradient[i] + decay * parameter;
    const float velocity = momentum * buffer[i] + decayed;
    buffer[i] = velocity;
    out[i] = parameter - rate * (decayed + momentum * velocity);
  }
}

struct AdamWArgs {
  int64_t count;
  const float* gradient;
  const float* in;
  float* out;
  float* mean;    // exp_avg
  float* square;  // exp_avg_sq
  float keep;     // 1 - learning rate * weight decay
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size, square_correction, epsilon;
};

[[gnu::always_inline]] inline void AdamWLoop(const AdamWArgs& args) {
  const auto [count, gradient, in, out, mean, square, keep, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size,
              square_correction, epsilon] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float parameter = in[i];
    const float g = gradient[i];
    const float m = beta1 * mean[i] + one_minus_beta1 * g;
    const float v = beta2 * square[i] + one_minus_beta2 * g * g;
    mean[i] = m;
    square[i] = v;
    // IEEE 754 demands a correctly rounded square root, so every processor gives the same bits, as it does not for most
    // functions of libm. As in PyTorch, epsilon is added after the bias correction.
    out[i] = keep * parameter - step_size * m / (std::sqrt(v) / square_correction + epsilon);
  }
}

// One copy of each loop for every instruction set. All give the same bits: an element's operations do not change, and
// -ffp-contract=off keeps the compiler from joining two of them.
STARRING_DEFINE_CLONES(kPlainSgd, PlainSgdLoop, SgdArgs);
STARRING_DEFINE_CLONES(kMomentum, MomentumLoop, SgdArgs);
STARRING_DEFINE_CLONES(kNesterov, NesterovLoop, SgdArgs);
STARRING_DEFINE_CLONES(kAdamW, AdamWLoop, AdamWArgs);

absl::Status Refuse(const char* field, double value, const char* allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", it must be ", allowed));
}

// 1 - y^2/2! + y^4/4! - ... and y - y^3/3! + ...: for |y| <= pi / 4 the first term left out is below 1e-17.
// Both use Horner's scheme, from the innermost term outwards: each round divides by the next two factors of the
// factorial.
double CosineSeries(double y) {
  double sum = 1;
  for (int n = 16; n >= 2; n -= 2) sum = 1 - sum * (y * y) / (n * (n - 1));
  return sum;
}
double SineSeries(double y) {
  double sum = 1;
  for (int n = 17; n >= 3; n -= 2) sum = 1 - sum * (y * y) / (n * (n - 1));
  return y * sum;
}

}  // namespace

absl::Status ValidateSchedule(const LearningRateSchedule& schedule) {
  const auto refuse = [](const char* field, auto value, const std::string& allowed) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", it must be ", allowed));
  };
  // Conditions are written so that a NaN fails them. The float is checked, because the loops compute in float: 1e39 is
  // finite as a double and infinite there.
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
  // The ramp counts from 1: no step has a rate of 0, and the last step of the warm-up has the full rate.
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
      // A run may go on after the schedule's end, where CosinePi's argument would be above 1.
      if (step >= schedule.total_steps) return 0;
      const double progress = static_cast<double>(step - schedule.warmup_steps) /
                              static_cast<double>(schedule.total_steps - schedule.warmup_steps);
      return static_cast<float>(schedule.base * 0.5 * (1 + CosinePi(progress)));
    }
  }
  return static_cast<float>(schedule.base);
}

absl::Status ValidateOptimizer(const OptimizerConfig& config) {
  // The value is checked as a float: 1 - 1e-9 rounds to 1, with which a mean would never forget.
  const auto in_unit = [](double value) { return value >= 0 && static_cast<float>(value) < 1; };
  if (config.kind != OptimizerKind::kSgd && config.kind != OptimizerKind::kAdamW) {
    return Refuse("optimizer kind", static_cast<int>(config.kind), "sgd or adamw");
  }
  if (!(config.weight_decay >= 0) || !std::isfinite(static_cast<float>(config.weight_decay))) {
    return Refuse("weight_decay", config.weight_decay, "a finite number of 0 or more");
  }
  if (!(config.clip_norm >= 0) || !std::isfinite(config.clip_norm)) {
    return Refuse("clip_norm", config.clip_norm, "a finite number of 0 or more");
  }
  if (config.kind == OptimizerKind::kSgd) {
    if (!in_unit(config.momentum)) return Refuse("momentum", config.momentum, "at least 0 and below 1");
    if (config.nesterov && !(config.momentum > 0)) return Refuse("momentum", config.momentum, "above 0 with nesterov");
    return absl::OkStatus();
  }
  if (!in_unit(config.beta1)) return Refuse("beta1", config.beta1, "at least 0 and below 1");
  if (!in_unit(config.beta2)) return Refuse("beta2", config.beta2, "at least 0 and below 1");
  if (!(static_cast<float>(config.epsilon) > 0) || !std::isfinite(static_cast<float>(config.epsilon))) {
    return Refuse("epsilon", config.epsilon, "a finite number above 0 in float32");
  }
  return absl::OkStatus();
}

int StateVectorCount(const OptimizerConfig& config) {
  if (config.kind == OptimizerKind::kAdamW) return 2;
  return config.momentum > 0 ? 1 : 0;
}

std::string_view StateVectorName(const OptimizerConfig& config, int i) {
  CHECK_GE(i, 0);
  CHECK_LT(i, StateVectorCount(config));
  if (config.kind == OptimizerKind::kSgd) return "momentum_buffer";
  return i == 0 ? "exp_avg" : "exp_avg_sq";
}

void ValidateUpdate(const OptimizerConfig& config, const UpdateArgs& args) {
  const int64_t count = std::ssize(args.gradient);
  CHECK_EQ(args.parameters_in.size(), count);
  CHECK_EQ(args.parameters_out.size(), count);
  CHECK_EQ(args.state.size(), StateVectorCount(config));
  for (const std::span<float> state : args.state) CHECK_EQ(state.size(), count);
  CHECK_GE(args.update, 1);
}

void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args, InstructionSet set) {
  ValidateUpdate(config, args);
  const int64_t count = std::ssize(args.gradient);
  const int clone = static_cast<int>(set);

  if (config.kind == OptimizerKind::kSgd) {
    // The settings are doubles; each is rounded to float here, once, and so alike on every owner.
    const SgdArgs sgd = {.count = count,
                         .gradient = args.gradient.data(),
                         .in = args.parameters_in.data(),
                         .out = args.parameters_out.data(),
                         .momentum_buffer = args.state.empty() ? nullptr : args.state[0].data(),
                         .learning_rate = args.learning_rate,
                         .momentum = static_cast<float>(config.momentum),
                         .weight_decay = static_cast<float>(config.weight_decay)};
    if (args.state.empty()) return kPlainSgd[clone](sgd);
    return config.nesterov ? kNesterov[clone](sgd) : kMomentum[clone](sgd);
  }

  // Like PyTorch, computes scalars in double and rounds them once. In float the bias corrections of the first steps
  // would lose most of their digits (1 - 0.999f).
  const double correction1 = 1 - IntegerPower(config.beta1, args.update);
  const double correction2 = 1 - IntegerPower(config.beta2, args.update);
  const double rate = args.learning_rate;
  kAdamW[clone]({.count = count,
                 .gradient = args.gradient.data(),
                 .in = args.parameters_in.data(),
                 .out = args.parameters_out.data(),
                 .mean = args.state[0].data(),
                 .square = args.state[1].data(),
                 .keep = static_cast<float>(1 - rate * config.weight_decay),
                 .beta1 = static_cast<float>(config.beta1),
                 .one_minus_beta1 = static_cast<float>(1 - config.beta1),
                 .beta2 = static_cast<float>(config.beta2),
                 .one_minus_beta2 = static_cast<float>(1 - config.beta2),
                 .step_size = static_cast<float>(rate / correction1),
                 .square_correction = static_cast<float>(std::sqrt(correction2)),
                 .epsilon = static_cast<float>(config.epsilon)});
}

double IntegerPower(double base, int64_t exponent) {
  CHECK_GE(exponent, 0);
  // Bit k of the exponent decides whether base^(2^k), the square of round k, is a factor.
  double result = 1;
  // The loop squares once more than it needs: with the bases of this file, at most 1, it can underflow but not
  // overflow.
  for (double square = base; exponent > 0; exponent /= 2, square *= square) {
    if (exponent % 2 == 1) result *= square;
  }
  return result;
}

double CosinePi(double x) {
  CHECK(0 <= x && x <= 1) << x;
  // Each part of the range uses the series whose argument is at most pi / 4, where few terms are enough.
  constexpr double kPi = 3.14159265358979323846;
  if (x <= 0.25) return CosineSeries(kPi * x);
  if (x <= 0.75) return -SineSeries(kPi * (x - 0.5));
  return -CosineSeries(kPi * (1 - x));
}

}  // namespace starring
