#include "kernels/cpu/onednn_dense.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/onednn_primitive.h"
#include "kernels/cpu/parallel.h"

namespace starring {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using Tag = memory::format_tag;

class OnednnDense : public Dense {
 public:
  // Throws dnnl::error.
  OnednnDense(CpuContext* context, const DenseSpec& spec);

  void Forward(const float* x, const float* weight, const float* bias, float* y) override;
  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override;

 private:
  CpuContext* const context_;
  const DenseSpec spec_;
  const bool has_bias_;
  OnednnPrimitive forward_, backward_weights_, backward_data_;
};

OnednnDense::OnednnDense(CpuContext* context, const DenseSpec& spec)
    : context_(context), spec_(spec), has_bias_(spec.bias == Bias::kAdded) {
  const auto describe = [](const memory::dims& dims, Tag tag) {
    return memory::desc(dims, memory::data_type::f32, tag);
  };
  const memory::desc x = describe({spec.batch, spec.in}, Tag::nc);
  const memory::desc weight = describe({spec.out, spec.in}, Tag::oi);
  const memory::desc bias = has_bias_ ? describe({spec.out}, Tag::x) : memory::desc();
  const memory::desc y = describe({spec.batch, spec.out}, Tag::nc);

  dnnl::primitive_attr attributes = OnednnAttributes();
  if (spec.activation == Activation::kRelu) {
    dnnl::post_ops relu;
    relu.append_eltwise(1, algorithm::eltwise_relu, 0, 0);
    attributes.set_post_ops(relu);
  }
  const dnnl::inner_product_forward::primitive_desc forward({dnnl::prop_kind::forward_training, x, weight, bias, y},
                                                            attributes, context->engine);
  std::vector<OnednnPrimitive::Argument> arguments = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DST, y}};
  if (has_bias_) arguments.emplace_back(DNNL_ARG_BIAS, bias);
  forward_ = OnednnPrimitive(context, forward, arguments);

  const dnnl::inner_product_backward_weights::primitive_desc weights({x, weight, bias, y}, OnednnAttributes(),
                                                                     context->engine, forward);
  arguments = {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_DIFF_WEIGHTS, weight}};
  if (has_bias_) arguments.emplace_back(DNNL_ARG_DIFF_BIAS, bias);
  backward_weights_ = OnednnPrimitive(context, weights, arguments);

  if (spec.input_gradient == InputGradient::kNeeded) {
    const dnnl::inner_product_backward_data::primitive_desc data({x, weight, y}, OnednnAttributes(), context->engine,
                                                                 forward);
    backward_data_ =
        OnednnPrimitive(context, data, {{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DIFF_SRC, x}});
  }
  for (const OnednnPrimitive* primitive : {&forward_, &backward_weights_, &backward_data_}) {
    context->scratch.Reserve(primitive->scratch_bytes());
  }
}

void OnednnDense::Forward(const float* x, const float* weight, const float* bias, float* y) {
  void* const scratch = context_->scratch.data();
  if (has_bias_) {
    forward_.Run({x, weight, y, bias}, scratch);
  } else {
    forward_.Run({x, weight, y}, scratch);
  }
}

void OnednnDense::Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                           float* dbias) {
  void* const scratch = context_->scratch.data();
  if (spec_.activation == Activation::kRelu) ReluBackward(*context_, y, dy, dy, spec_.batch * spec_.out);
  if (has_bias_) {
    backward_weights_.Run({x, dy, dweight, dbias}, scratch);
  } else {
    backward_weights_.Run({x, dy, dweight}, scratch);
  }
  if (backward_data_) backward_data_.Run({dy, weight, dx}, scratch);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dense>> CreateOnednnDense(CpuContext* context, const DenseSpec& spec) {
  const ThreadCountScope threads(context->threads);
  try {
    return std::make_unique<OnednnDense>(context, spec);
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("oneDNN makes no dense layer of this shape: ", error.what()));
  }
}

}  // namespace starring
