// The arithmetic of sums over ranks: element types, and sums in the order of a tree or of a chain
// (common/arithmetic/reduction_order.h). All additions are in float32; elements of 16 bits are widened before and
// rounded once, after the division.
//
// Arrays of elements are bytes, aligned for their type. Every bit is defined, for any instruction set. The calling
// thread must have the default floating-point environment: subnormal numbers are not flushed.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_REDUCE_ARRAYS_ELEMENT_SUM_H_
#define STARRING_COMMON_REDUCE_ARRAYS_ELEMENT_SUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/arithmetic/instruction_set.h"

namespace starring {

// The numbers are those of starring.h, and on the wire.
enum class ElementType : int32_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };
inline constexpr int kElementTypeCount = 3;

constexpr int64_t ElementBytes(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }
// "float32"; "an unknown type" for a number that is no type.
const char* ElementTypeName(ElementType type);

// floats[i] = elements[i], exactly.
void Widen(ElementType type, const std::byte* elements, std::span<float> floats,
           InstructionSet set = BestInstructionSet());

// The last steps of a sum: it is divided, and rounded to the nearest element, ties to even. A NaN stays a NaN.
struct SumResult {
  ElementType type = ElementType::kFloat32;
  float divisor = 1.0f;
};

// elements[i] = the result of sum[i]. `sum` is overwritten.
void Finish(const SumResult& result, std::span<float> sum, std::byte* elements,
            InstructionSet set = BestInstructionSet());

// sum[i] += elements[i].
void AddElements(ElementType type, const std::byte* elements, std::span<float> sum,
                 InstructionSet set = BestInstructionSet());

// out[i] = the result of the sum of contributions[k][i] over all k, as a tree.
// Shapes: each contribution and `out`: `count` elements of result.type. `out` may be one of the contributions.
// Cost:   each array moves once between memory and cache.
void SumContributions(std::span<const std::byte* const> contributions, int64_t count, const SumResult& result,
                      std::byte* out, InstructionSet set = BestInstructionSet());

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_ARRAYS_ELEMENT_SUM_H_
