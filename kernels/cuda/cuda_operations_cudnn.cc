#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_operations.h"
#include "kernels/cuda/cudnn_product.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/matrix_product.h"

namespace starring {
namespace {

// The word in run records, and in the texts that ranks compare, for a shape that our own kernels compute because cuDNN
// has no engine, or refuse.
constexpr const char* kOwn = "own";

// "64 x 28 x 28 x 1 to 32, kernel 3 x 3, stride 1 x 1, padding 0 x 0, bias, relu".
// It is the key of the choice, so it has everything that the choice depends on: bias and ReLU decide what is fused, and
// without an input gradient there is one product less.
std::string ShapeText(const Conv2dSpec& s) {
  return absl::StrCat(s.batch, " x ", s.in_height, " x ", s.in_width, " x ", s.in_channels, " to ", s.out_channels,
                      ", kernel ", s.kernel_height, " x ", s.kernel_width, ", stride ", s.stride_height, " x ",
                      s.stride_width, ", padding ", s.padding_height, " x ", s.padding_width,
                      s.bias == Bias::kAdded ? ", bias" : "", s.activation == Activation::kRelu ? ", relu" : "",
                      s.input_gradient == InputGradient::kNotNeeded ? ", no input gradient" : "",
                      s.element == Element::kBfloat16 ? ", bfloat16" : "");
}

int64_t WeightElements(const Conv2dSpec& s) {
  return s.out_channels * s.kernel_height * s.kernel_width * s.in_channels;
}

// Where a weight gradient goes that is not float32: in the scratch memory, after cuDNN's workspace.
int64_t RoundedGradientOffset(const CudnnProduct& product) {
  return RoundUp(product.workspace_bytes(), kCacheLineBytes);
}
const void* RoundedGradient(const CudaContext& context, const CudnnProduct& product) {
  return reinterpret_cast<const char*>(context.scratch.floats()) + RoundedGradientOffset(product);
}

}  // namespace

// The products that layers of one shape share, so that engines are searched once per shape.
struct CudnnProducts {
  std::unique_ptr<CudnnProduct> forward, weight_gradient, input_gradient;
  bool fuses = false;  // forward applies bias and activation

  std::string Engines() const {
    std::string text = absl::StrCat("forward ", forward->engine(), fuses ? " fused" : "", ", weight gradient ",
                                    weight_gradient->engine());
    if (input_gradient != nullptr) absl::StrAppend(&text, ", input gradient ", input_gradient->engine());
    return text;
  }
};

namespace {

// NotFound if one of the products has no engine: then none of the three is cuDNN's.
absl::StatusOr<std::shared_ptr<const CudnnProducts>> CreateProducts(CudaContext* context, const Conv2dSpec& spec) {
  using Epilogue = CudnnProduct::Epilogue;
  auto products = std::make_shared<CudnnProducts>();
  const auto make = [&](ConvolutionProduct product, Epilogue epilogue) {
    return CudnnProduct::Create(context, spec, product, epilogue);
  };
  if (spec.bias == Bias::kAdded || spec.activation == Activation::kRelu) {
    // The fused product is tried first: a kernel of its own for bias and ReLU would read and write all of y once more.
    auto fused = make(ConvolutionProduct::kForward, Epilogue::kOfTheSpec);
    // NotFound is an answer about the shape. Memory that does not fit is none: the choice must not depend on how much
    // is free.
    if (!fused.ok() && !absl::IsNotFound(fused.status())) return fused.status();
    products->fuses = fused.ok();
    if (fused.ok()) products->forward = *std::move(fused);
  }
  if (!products->fuses) {
    ASSIGN_OR_RETURN(products->forward, make(ConvolutionProduct::kForward, Epilogue::kNone));
  }
  ASSIGN_OR_RETURN(products->weight_gradient, make(ConvolutionProduct::kWeightGradient, Epilogue::kNone));
  if (spec.element != Element::kFloat32) {
    RETURN_IF_ERROR(context->scratch.Reserve(RoundedGradientOffset(*products->weight_gradient) +
                                             BytesOf(spec.element) * WeightElements(spec)));
  }
  // An engine that is never run must not refuse the shape.
  if (spec.input_gradient == InputGradient::kNeeded) {
    ASSIGN_OR_RETURN(products->input_gradient, make(ConvolutionProduct::kInputGradient, Epilogue::kNone));
  }
  return products;
}

class CudnnConv2d : public LayerOperation {
 public:
  CudnnConv2d(CudaContext* context, const Conv2dSpec& spec, std::shared_ptr<const CudnnProducts> products)
      : context_(context), spec_(spec), products_(std::move(products)) {}

  void Forward(ConstElements x, ConstElements weight, ConstElements bias, Elements y) override {
    // The bias is an argument of the fused graph only. The plain graph has no such tensor.
    const bool fuses = products_->fuses, adds_bias = spec_.bias == Bias::kAdded;
    context_->Keep(products_->forward->Run(
        {.x = x.data(), .weight = weight.data(), .y = y.data(), .bias = fuses && adds_bias ? bias.data() : nullptr},
        &forward_));
    if (fuses || (!adds_bias && spec_.activation == Activation::kNone)) return;
    context_->Keep(cuda::AddBias(context_->stream, {.activation = MaskOf(spec_.activation),
                                                    .rows = Rows(),
                                                    .channels = spec_.out_channels,
                                                    .bias = adds_bias ? bias : ConstElements(),
                                                    .y = y}),
                   "add bias");
  }

  void Backward(ConstElements x, ConstElements weight, ConstElements y, Elements dy, Elements dx, float* dweight,
                float* dbias) override {
    // This comes before both products, which read the masked dy.
    ActivationGradient(context_, {.rows = Rows(),
                                  .channels = spec_.out_channels,
                                  .activation = spec_.activation,
                                  .y = y,
                                  .dy = dy,
                                  .dbias = dbias});
    WeightGradient(x, dy, dweight);
    if (dx.is_null()) return;
    context_->Keep(
        products_->input_gradient->Run({.x = dx.data(), .weight = weight.data(), .y = dy.data()}, &input_gradient_));
  }

 private:
  int64_t Rows() const { return spec_.batch * spec_.out_height() * spec_.out_width(); }

  // cuDNN writes elements of the factors' kind. Gradients of parameters are float32: others are cast there.
  void WeightGradient(ConstElements x, ConstElements dy, float* dweight) {
    const CudnnProduct& product = *products_->weight_gradient;
    if (spec_.element == Element::kFloat32) {
      context_->Keep(product.Run({.x = x.data(), .weight = dweight, .y = dy.data()}, &weight_gradient_));
      return;
    }
    const ConstElements rounded(spec_.element, RoundedGradient(*context_, product));
    context_->Keep(product.Run({.x = x.data(), .weight = rounded.data(), .y = dy.data()}, &weight_gradient_));
    context_->Keep(cuda::Cast(context_->stream, rounded, dweight, WeightElements(spec_)), "widening a gradient");
  }

  CudaContext* const context_;
  const Conv2dSpec spec_;
  const std::shared_ptr<const CudnnProducts> products_;  // of all layers of this shape
  // The arguments are this layer's own: layers of one shape have other pointers.
  CudnnProduct::Pack forward_, weight_gradient_, input_gradient_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudnnConv2d(CudaContext* context, const Conv2dSpec& spec) {
  const std::string shape = ShapeText(spec);
  // Products are kept as long as the device, also the answer that there is no engine: neither another layer of the
  // shape nor a batch size that the network plans again needs a second search.
  if (!context->engines.contains(shape)) {
    absl::StatusOr<std::shared_ptr<const CudnnProducts>> products = CreateProducts(context, spec);
    if (!products.ok() && !absl::IsNotFound(products.status())) return Annotate(products.status(), "conv2d");
    context->engines[shape] = products.ok() ? (*products)->Engines() : kOwn;
    context->products[shape] = products.ok() ? *std::move(products) : nullptr;
  }
  std::shared_ptr<const CudnnProducts> products = context->products[shape];
  if (products == nullptr) return nullptr;
  return std::make_unique<CudnnConv2d>(context, spec, std::move(products));
}

}  // namespace starring
