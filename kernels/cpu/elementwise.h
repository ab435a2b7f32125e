// Element by element: relu, its gradient, sums. Bandwidth-bound; every element's arithmetic is the same on every
// instruction set and number of threads.
//
// Thread safety: no state.
#ifndef STARRING_KERNELS_CPU_ELEMENTWISE_H_
#define STARRING_KERNELS_CPU_ELEMENTWISE_H_

#include <cstdint>

#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// y = x where x > 0 or NaN, else 0. y may alias x.
void Relu(const CpuContext& context, const float* x, float* y, int64_t count);

// dx = dy where y > 0, else 0. dx may alias dy.
void ReluBackward(const CpuContext& context, const float* y, const float* dy, float* dx, int64_t count);

// y = act(a + b). y may alias a or b.
void Add(const CpuContext& context, const float* a, const float* b, Activation activation, float* y, int64_t count);

// dx = a + b where y > 0, else 0: Add and ReluBackward in one pass. dx may alias a or b.
void AddReluBackward(const CpuContext& context, const float* y, const float* a, const float* b, float* dx,
                     int64_t count);

// y += x.
void Accumulate(const CpuContext& context, const float* x, float* y, int64_t count);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_ELEMENTWISE_H_
