#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/cpu/onednn_primitive.h"

namespace starring {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using Tag = memory::format_tag;

// Convolutions by oneDNN. Activations and weights are in our formats (NHWC, O-KH-KW-I); a primitive that wants another
// format has its operands reordered in every call.

// Winograd F(4x4, 3x3) does a quarter of the multiplications; its transforms pay from 32 channels on both sides
// (kernels/README.md has the times). A rule, not a timing: the choice decides bits.
bool WinogradPays(const Conv2dSpec& s) {
  return s.kernel_height == 3 && s.kernel_width == 3 && s.stride_height == 1 && s.stride_width == 1 &&
         s.in_channels >= 32 && s.out_channels >= 32;
}

// Dimensions are in oneDNN's order, (batch, channels, height, width), whatever the order in memory, which the tag
// names.
memory::desc Describe(const memory::dims& dims, Tag tag) { return {dims, memory::data_type::f32, tag}; }

// Divides the shared scratch memory among the temporaries of one call.
class ScratchPlan {
 public:
  int64_t Add(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += RoundUp(bytes, kCacheLineBytes);
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// One operand of a primitive. If the primitive's format differs from ours, an input is reordered into scratch memory
// before the primitive runs, and an output out of it afterwards.
class Operand {
 public:
  enum class Use { kInput, kOutput };
  Operand() = default;
  Operand(CpuContext* context, const memory::desc& ours, const memory::desc& theirs, Use use, ScratchPlan* plan)
      : reorder_(use == Use::kInput ? OnednnReorder(context, ours, theirs) : OnednnReorder(context, theirs, ours)) {
    if (!reorder_.needed()) return;
    offset_ = plan->Add(static_cast<int64_t>(theirs.get_size()));
    reorder_scratch_ = plan->Add(reorder_.scratch_bytes());
  }

  // The memory that the primitive reads.
  const void* Input(const void* ours, std::byte* scratch) {
    if (!reorder_.needed()) return ours;
    reorder_.Run(ours, scratch + offset_, scratch + reorder_scratch_);
    return scratch + offset_;
  }
  // The memory that the primitive writes; Finish then reorders it into `ours`.
  void* Output(void* ours, std::byte* scratch) const { return reorder_.needed() ? scratch + offset_ : ours; }
  void Finish(void* ours, std::byte* scratch) {
    if (reorder_.needed()) reorder_.Run(scratch + offset_, ours, scratch + reorder_scratch_);
  }

 private:
  OnednnReorder reorder_;
  int64_t offset_ = 0;
  int64_t reorder_scratch_ = 0;
};

class OnednnConv2d : public FloatOperation {
 public:
  // Throws dnnl::error when `convolution` cannot do this shape on this CPU.
  OnednnConv2d(CpuContext* context, const Conv2dSpec& spec, algorithm convolution, Tag activations);

  // The scratch memory of the largest of the three calls, which never overlap.
  int64_t scratch_bytes() const { return scratch_bytes_; }

  void Forward(const float* x, const float* weight, const float* bias, float* y) override;
  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override;

 private:
  void PlanForward(const dnnl::convolution_forward::primitive_desc& forward);
  void PlanBackwardWeights(const dnnl::convolution_backward_weights::primitive_desc& backward);
  void PlanBackwardData(const dnnl::convolution_backward_data::primitive_desc& backward);

  CpuContext* const context_;
  const Conv2dSpec spec_;
  const bool has_bias_;
  memory::desc x_ours_, weight_ours_, bias_ours_, y_ours_;

  OnednnPrimitive forward_, backward_weights_, backward_data_;
  Operand forward_x_, forward_weight_, forward_y_;
  Operand weights_x_, weights_dy_, weights_dweight_;
  Operand data_dy_, data_weight_, data_dx_;
  int64_t forward_scratch_ = 0, weights_scratch_ = 0, data_scratch_ = 0;  // offsets
  int64_t scratch_bytes_ = 0;
};

OnednnConv2d::OnednnConv2d(CpuContext* context, const Conv2dSpec& spec, algorithm convolution, Tag activations)
    : context_(context), spec_(spec), has_bias_(spec.bias == Bias::kAdded) {
  const memory::dims x_dims = {spec.batch, spec.in_channels, spec.in_height, spec.in_width};
  const memory::dims weight_dims = {spec.out_channels, spec.in_channels, spec.kernel_height, spec.kernel_width};
  const memory::dims y_dims = {spec.batch, spec.out_channels, spec.out_height(), spec.out_width()};
  x_ours_ = Describe(x_dims, Tag::nhwc);
  weight_ours_ = Describe(weight_dims, Tag::ohwi);
  bias_ours_ = has_bias_ ? Describe({spec.out_channels}, Tag::x) : memory::desc();
  y_ours_ = Describe(y_dims, Tag::nhwc);

  const memory::desc x = Describe(x_dims, activations);
  // The primitive chooses the format of the weights, which are few to reorder. The direct algorithm gets our format of
  // activations, and Winograd chooses its own.
  const memory::desc weight = Describe(weight_dims, Tag::any);
  const memory::desc y = Describe(y_dims, activations);
  const memory::dims strides = {spec.stride_height, spec.stride_width};
  const memory::dims before = {spec.padding_height, spec.padding_width};
  // oneDNN wants the last window to end exactly at the padded edge. Where a stride leaves columns over, this padding is
  // smaller than ours, or negative.
  const memory::dims after = {
      (spec.out_height() - 1) * spec.stride_height + spec.kernel_height - spec.in_height - spec.padding_height,
      (spec.out_width() - 1) * spec.stride_width + spec.kernel_width - spec.in_width - spec.padding_width};

  dnnl::primitive_attr attributes = OnednnAttributes();
  if (spec.activation == Activation::kRelu) {
    dnnl::post_ops relu;
    relu.append_eltwise(1, algorithm::eltwise_relu, 0, 0);
    attributes.set_post_ops(relu);
  }
  // Forward applies ReLU to an output before it stores it, which saves a pass over y.
  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, convolution, x, weight, bias_ours_, y, strides, before, after}, attributes,
      context->engine);
  PlanForward(forward);
  PlanBackwardWeights(
      {{convolution, x, weight, bias_ours_, y, strides, before, after}, OnednnAttributes(), context->engine, forward});
  if (spec.input_gradient == InputGradient::kNeeded) {
    PlanBackwardData(
        {{convolution, x, weight, y, strides, before, after}, OnednnAttributes(), context->engine, forward});
  }
}

void OnednnConv2d::PlanForward(const dnnl::convolution_forward::primitive_desc& forward) {
  // Each of the three Plan functions plans a call that has the whole scratch memory.
  std::vector<OnednnPrimitive::Argument> arguments = {{DNNL_ARG_SRC, forward.src_desc()},
                                                      {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                                                      {DNNL_ARG_DST, forward.dst_desc()}};
  if (has_bias_) arguments.emplace_back(DNNL_ARG_BIAS, bias_ours_);
  forward_ = OnednnPrimitive(context_, forward, arguments);
  ScratchPlan plan;
  forward_x_ = Operand(context_, x_ours_, forward.src_desc(), Operand::Use::kInput, &plan);
  forward_weight_ = Operand(context_, weight_ours_, forward.weights_desc(), Operand::Use::kInput, &plan);
  forward_y_ = Operand(context_, y_ours_, forward.dst_desc(), Operand::Use::kOutput, &plan);
  forward_scratch_ = plan.Add(forward_.scratch_bytes());
  scratch_bytes_ = std::max(scratch_bytes_, plan.bytes());
}

void OnednnConv2d::PlanBackwardWeights(const dnnl::convolution_backward_weights::primitive_desc& backward) {
  std::vector<OnednnPrimitive::Argument> arguments = {{DNNL_ARG_SRC, backward.src_desc()},
                                                      {DNNL_ARG_DIFF_DST, backward.diff_dst_desc()},
                                                      {DNNL_ARG_DIFF_WEIGHTS, backward.diff_weights_desc()}};
  if (has_bias_) arguments.emplace_back(DNNL_ARG_DIFF_BIAS, bias_ours_);
  backward_weights_ = OnednnPrimitive(context_, backward, arguments);
  ScratchPlan plan;
  weights_dy_ = Operand(context_, y_ours_, backward.diff_dst_desc(), Operand::Use::kInput, &plan);
  weights_x_ = Operand(context_, x_ours_, backward.src_desc(), Operand::Use::kInput, &plan);
  weights_dweight_ = Operand(context_, weight_ours_, backward.diff_weights_desc(), Operand::Use::kOutput, &plan);
  weights_scratch_ = plan.Add(backward_weights_.scratch_bytes());
  scratch_bytes_ = std::max(scratch_bytes_, plan.bytes());
}

void OnednnConv2d::PlanBackwardData(const dnnl::convolution_backward_data::primitive_desc& backward) {
  backward_data_ = OnednnPrimitive(context_, backward,
                                   {{DNNL_ARG_DIFF_DST, backward.diff_dst_desc()},
                                    {DNNL_ARG_WEIGHTS, backward.weights_desc()},
                                    {DNNL_ARG_DIFF_SRC, backward.diff_src_desc()}});
  ScratchPlan plan;
  data_dy_ = Operand(context_, y_ours_, backward.diff_dst_desc(), Operand::Use::kInput, &plan);
  data_weight_ = Operand(context_, weight_ours_, backward.weights_desc(), Operand::Use::kInput, &plan);
  data_dx_ = Operand(context_, x_ours_, backward.diff_src_desc(), Operand::Use::kOutput, &plan);
  data_scratch_ = plan.Add(backward_data_.scratch_bytes());
  scratch_bytes_ = std::max(scratch_bytes_, plan.bytes());
}

void OnednnConv2d::Forward(const float* x, const float* weight, const float* bias, float* y) {
  std::byte* const scratch = context_->scratch.data();
  const void* const x_in = forward_x_.Input(x, scratch);
  const void* const weight_in = forward_weight_.Input(weight, scratch);
  void* const y_out = forward_y_.Output(y, scratch);
  if (has_bias_) {
    forward_.Run({x_in, weight_in, y_out, bias}, scratch + forward_scratch_);
  } else {
    forward_.Run({x_in, weight_in, y_out}, scratch + forward_scratch_);
  }
  forward_y_.Finish(y, scratch);
}

void OnednnConv2d::Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                            float* dbias) {
  std::byte* const scratch = context_->scratch.data();
  // dy is masked once for both gradients, in place: oneDNN's backward passes know nothing of the ReLU that forward
  // fused.
  if (spec_.activation == Activation::kRelu) {
    ReluBackward(*context_, y, dy, dy, spec_.batch * spec_.out_height() * spec_.out_width() * spec_.out_channels);
  }
  {
    const void* const dy_in = weights_dy_.Input(dy, scratch);
    const void* const x_in = weights_x_.Input(x, scratch);
    void* const dweight_out = weights_dweight_.Output(dweight, scratch);
    if (has_bias_) {
      backward_weights_.Run({x_in, dy_in, dweight_out, dbias}, scratch + weights_scratch_);
    } else {
      backward_weights_.Run({x_in, dy_in, dweight_out}, scratch + weights_scratch_);
    }
    weights_dweight_.Finish(dweight, scratch);
  }
  // The first layer needs no dx. From here on the scratch memory is planned anew; dweight has left it.
  if (!backward_data_) return;
  const void* const dy_in = data_dy_.Input(dy, scratch);
  const void* const weight_in = data_weight_.Input(weight, scratch);
  backward_data_.Run({dy_in, weight_in, data_dx_.Output(dx, scratch)}, scratch + data_scratch_);
  data_dx_.Finish(dx, scratch);
}

absl::StatusOr<std::unique_ptr<OnednnConv2d>> PlanConv2d(CpuContext* context, const Conv2dSpec& s) {
  if (WinogradPays(s)) {
    try {
      return std::make_unique<OnednnConv2d>(context, s, algorithm::convolution_winograd, Tag::any);
    } catch (const dnnl::error&) {
      // oneDNN has no Winograd on this CPU (it needs AVX-512) or for this shape. The direct algorithm takes every
      // shape.
    }
  }
  try {
    return std::make_unique<OnednnConv2d>(context, s, algorithm::convolution_direct, Tag::nhwc);
  } catch (const dnnl::error& error) {
    const std::string message =
        absl::StrCat("oneDNN makes no convolution of ", s.batch, " x ", s.in_height, " x ", s.in_width, " x ",
                     s.in_channels, " elements with ", s.out_channels, " kernels of ", s.kernel_height, " x ",
                     s.kernel_width, ", stride ", s.stride_height, " x ", s.stride_width, ", padding ",
                     s.padding_height, " x ", s.padding_width, ": ", error.what());
    return error.status == dnnl_out_of_memory ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateOnednnConv2d(CpuContext* context, const Conv2dSpec& spec) {
  // oneDNN chooses an implementation for the number of threads that it finds here, and Run executes with the same
  // number.
  const ThreadCountScope threads(context->threads);
  ASSIGN_OR_RETURN(auto conv, PlanConv2d(context, spec), "conv2d");
  RETURN_IF_ERROR(context->scratch.Reserve(conv->scratch_bytes()), "conv2d");
  return conv;
}

}  // namespace starring
