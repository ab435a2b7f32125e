// sum = ((inputs[0] + inputs[1]) + inputs[2]) + ...: element by element, strictly left to right, so that the bits of a
// sum are decided by the order of the inputs alone.
//
// Shapes:      every input: 4 * sum.size() bytes of little-endian float32, on any byte boundary (a received message
//              starts anywhere); sum: (count) float32.
// Writes:      sum is overwritten (=). It may be inputs[0], and otherwise overlaps no input.
// Requires:    at least one input.
// Cost:        one pass over memory: count * (inputs + 1) * 4 bytes moved, inputs - 1 additions each: bandwidth-bound.
// Determinism: bitwise, whatever alignment, length and instruction set.
#ifndef STARRING_COMMON_ARITHMETIC_SUM_IN_ORDER_H_
#define STARRING_COMMON_ARITHMETIC_SUM_IN_ORDER_H_

#include <cstddef>
#include <span>

#include "common/arithmetic/instruction_set.h"

namespace starring {

void SumInOrder(std::span<const std::byte* const> inputs, std::span<float> sum,
                InstructionSet set = BestInstructionSet());

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_SUM_IN_ORDER_H_
