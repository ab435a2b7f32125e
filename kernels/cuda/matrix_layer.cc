#include "kernels/cuda/matrix_layer.h"

#include "common/status.h"
#include "kernels/cuda/bias_gradient.h"
#include "kernels/cuda/elementwise.h"

namespace starring {

absl::StatusOr<MatrixLayer> MatrixLayer::Create(CudaContext* context, const DenseSpec& s) {
  MatrixLayer layer;
  ASSIGN_OR_RETURN(layer.y_, MatrixProduct::Create(context, {.rows = s.batch,
                                                             .columns = s.out,
                                                             .depth = s.in,
                                                             .b = Stored::kTransposed,
                                                             .bias = s.bias,
                                                             .activation = s.activation}));
  ASSIGN_OR_RETURN(
      layer.dweight_,
      MatrixProduct::Create(context, {.rows = s.out, .columns = s.in, .depth = s.batch, .a = Stored::kTransposed}));
  if (s.input_gradient == InputGradient::kNotNeeded) return layer;
  ASSIGN_OR_RETURN(layer.dx_, MatrixProduct::Create(context, {.rows = s.batch, .columns = s.in, .depth = s.out}));
  return layer;
}

absl::Status ReserveForActivationGradient(CudaContext* context, int64_t rows, int64_t channels) {
  RETURN_IF_ERROR(context->counters.Reserve(context->stream, cuda::BiasGradientCounters(rows, channels)));
  return context->scratch.Reserve(static_cast<int64_t>(sizeof(float)) *
                                  cuda::BiasGradientPartialFloats(rows, channels));
}

void ActivationGradient(CudaContext* context, const ActivationGradientArgs& g) {
  if (g.dbias != nullptr) {
    context->Keep(cuda::BiasGradient(context->stream, {.mask = MaskOf(g.activation),
                                                       .rows = g.rows,
                                                       .channels = g.channels,
                                                       .y = g.y,
                                                       .dy = g.dy,
                                                       .dbias = g.dbias,
                                                       .partial = context->scratch.floats(),
                                                       .counters = context->counters.data()}),
                  "bias gradient");
  } else if (g.activation == Activation::kRelu) {
    context->Keep(cuda::ReluBackward(context->stream, g.y, g.dy, g.dy, g.rows * g.channels), "relu backward");
  }
}

}  // namespace starring
