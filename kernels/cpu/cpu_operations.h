// The operations of kernels/device.h on the CPU: a source file for each, named after it, but for average pools and
// depthwise convolutions, which share channel_windows.cc. Dense layers and convolutions
// of few channels run on our tiles (tiles.h), other convolutions on oneDNN, everything else on loops of our own;
// kernels/README.md says what each of our loops gains.
//
// A factory fails with InvalidArgument on a shape that makes no sense, unless it requires a checked one, and with
// ResourceExhausted where memory does not fit. `context` outlives the results.
//
// Thread safety: one thread, which starts the context's threads.
#ifndef STARRING_KERNELS_CPU_CPU_OPERATIONS_H_
#define STARRING_KERNELS_CPU_CPU_OPERATIONS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/arithmetic/instruction_set.h"
#include "kernels/device.h"

namespace starring {

struct CpuContext;  // cpu_context.h

// Whether tiles compute this convolution; otherwise oneDNN does, whose vectors are mostly empty with few input channels
// and which has only its sgemm, which allocates, without AVX2. A rule, not a timing: the choice decides bits.
inline bool TiledConv2dPays(const Conv2dSpec& spec, InstructionSet set) {
  return spec.in_channels < 16 || set == InstructionSet::kBaseline;
}
// REQUIRES: CheckShape(spec).
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateTiledConv2d(CpuContext* context,
                                                                                const Conv2dSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateOnednnConv2d(CpuContext* context,
                                                                                 const Conv2dSpec& spec);

// One for each other alternative of OperationSpec. REQUIRES: CheckShape(spec).
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                                 const DenseSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                                 const Pool2dSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                                 const GlobalAveragePoolSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                                 const ActivationSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                                 const AveragePool2dSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                                 const DepthwiseConv2dSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                                 const ConcatPartSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCpuOperation(CpuContext* context,
                                                                                 const GroupNormSpec& spec);

[[nodiscard]] absl::StatusOr<std::unique_ptr<BatchNorm>> CreateCpuBatchNorm(CpuContext* context,
                                                                            const BatchNormSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<Dropout>> CreateCpuDropout(CpuContext* context, const DropoutSpec& spec);
// kSoftmax; REQUIRES CheckShape(spec), as does the next.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Loss>> CreateCpuSoftmaxCrossEntropy(CpuContext* context,
                                                                                 const LossSpec& spec);
// kMse and kBce.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Loss>> CreateCpuValueLoss(CpuContext* context, const LossSpec& spec);

// Element by element, in elementwise.cc: bound by the bandwidth of memory. Each element's arithmetic is the same on
// every instruction set and number of threads, and an output may alias any input.

// y = x where x > 0 or NaN, else 0.
void Relu(const CpuContext& context, const float* x, float* y, int64_t count);
// dx = dy where y > 0, else 0.
void ReluBackward(const CpuContext& context, const float* y, const float* dy, float* dx, int64_t count);
// y = act(a + b).
void Add(const CpuContext& context, const float* a, const float* b, Activation activation, float* y, int64_t count);
// dx = a + b where y > 0, else 0: Add and ReluBackward in one pass.
void AddReluBackward(const CpuContext& context, const float* y, const float* a, const float* b, float* dx,
                     int64_t count);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_CPU_OPERATIONS_H_
