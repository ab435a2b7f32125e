// The length of a whole gradient, and the factor by which --clip_norm scales it, with the semantics of PyTorch's
// torch.nn.utils.clip_grad_norm_.
//
// Every process of a job computes the factor by itself, and all must get the same bits. Therefore the order of the
// additions follows from the gradient's length alone. It does not depend on who owns an element, nor on buckets, nor on
// the instruction set; users are compiled with -ffp-contract=off.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_ARITHMETIC_GRADIENT_NORM_H_
#define STARRING_COMMON_ARITHMETIC_GRADIENT_NORM_H_

#include <span>

#include "common/arithmetic/instruction_set.h"

namespace starring {

// The sum of the squares in float64, where a square of a float32 is exact. Blocks of 4096 elements are summed by
// themselves, and their sums are added in ascending order.
double SumOfSquares(std::span<const float> values, InstructionSet set = BestInstructionSet());

// min(1, clip_norm / (norm + 1e-6)), where norm is the root of SumOfSquares. NaN if the norm is NaN, so that a gradient
// that is not a number stays one. REQUIRES: clip_norm > 0.
float ClipFactor(double clip_norm, std::span<const float> gradient);

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_GRADIENT_NORM_H_
