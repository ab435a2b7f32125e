// Optimizers with PyTorch's semantics, element by element over spans. See torch.optim.SGD (momentum, dampening 0,
// Nesterov, weight decay added to the gradient) and torch.optim.AdamW (decoupled weight decay: Loshchilov and Hutter,
// 2019, algorithm 2).
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

enum class OptimizerKind { kSgd, kAdamW };

// Doubles, as PyTorch's: 1 - 0.999f is off by 1e-5.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0;    // kSgd, in [0, 1)
  bool nesterov = false;  // kSgd, needs momentum > 0
  double weight_decay = 0;
  double beta1 = 0.9;     // kAdamW, in [0, 1)
  double beta2 = 0.999;   // kAdamW, in [0, 1)
  double epsilon = 1e-8;  // kAdamW, above 0 in float32 too: alignment gaps must not become 0 / 0
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

// InvalidArgument naming the field, its value and what is allowed.
absl::Status ValidateOptimizer(const OptimizerConfig& config);

// State vectors as long as the parameters: 0 (SGD without momentum), 1 (momentum_buffer) or 2 (exp_avg, exp_avg_sq).
int StateVectorCount(const OptimizerConfig& config);
// PyTorch's name of state vector i.
std::string_view StateVectorName(const OptimizerConfig& config, int i);

// One update of all elements: reads parameters_in and gradient, updates state in place, writes parameters_out (which
// may be parameters_in; otherwise no two spans overlap). `state[i]` is state vector i. `update` counts from 1 (AdamW's
// bias correction). REQUIRES: all spans of one length; state.size() == StateVectorCount(config). The result of an
// element depends on that element's inputs alone, never on its position, the span's alignment or length, and not on the
// instruction set that was chosen at run time.
struct UpdateArgs {
  float learning_rate = 0;
  int64_t update = 1;
  std::span<const float> gradient;
  std::span<const float> parameters_in;
  std::span<float> parameters_out;
  std::span<const std::span<float>> state;
};
// Ends the process where a REQUIRES above does not hold.
void ValidateUpdate(const OptimizerConfig& config, const UpdateArgs& args);
void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args, InstructionSet set = BestInstructionSet());

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_OPTIMIZER_H_
