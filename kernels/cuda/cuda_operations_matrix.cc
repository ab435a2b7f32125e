// Convolutions that cuDNN does not compute (cuda_operations_cudnn.cc), and dense layers.
//
// A convolution is a dense layer over columns. Forward is im2col and a product; backward is two products and col2im.
//
// The columns are kernel_height * kernel_width times as large as x. So they are made in chunks of images that fit in
// columns_bytes_max, and the weight gradient adds the chunks in order. A chunk is a multiple of four images: its part
// of every tensor then begins on a 16-byte boundary, whatever the shape. Where the columns are x itself, nothing is
// copied: for 1 x 1 kernels with stride 1, and for kernels that cover the whole image. Narrow convolutions need no
// columns either: their kernels gather patches themselves (narrow_convolution.h), in fp32 only, because they do not use
// the tensor cores, for which a user asks by tf32 or bf16.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_operations.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/im2col.h"
#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/narrow_convolution.h"
#include "kernels/shape_checks.h"

namespace starring {
namespace {

constexpr int64_t kImagesMultiple = 4;  // of a chunk: four floats are 16 bytes

class CudaDense : public LayerOperation {
 public:
  CudaDense(CudaContext* context, const DenseSpec& spec, DenseProducts products)
      : context_(context), spec_(spec), products_(std::move(products)) {}

  void Forward(ConstElements x, ConstElements weight, ConstElements bias, Elements y) override {
    products_.Forward(x, weight, bias, y);
  }

  void Backward(ConstElements x, ConstElements weight, ConstElements y, Elements dy, Elements dx, float* dweight,
                float* dbias) override {
    // This comes first, because both products read the masked dy.
    ActivationGradient(
        context_,
        {.rows = spec_.batch, .channels = spec_.out, .activation = spec_.activation, .y = y, .dy = dy, .dbias = dbias});
    // The loss writes dy in float32; the factors of a product have the same elements.
    const ConstElements factor = spec_.output == spec_.element ? ConstElements(dy) : Rounded(dy);
    products_.WeightGradient(x, factor, dweight, Write::kOverwrite);
    if (!dx.is_null()) products_.InputGradientOf(factor, weight, dx);
  }

 private:
  ConstElements Rounded(ConstElements dy) const {
    const Elements rounded(spec_.element, context_->scratch.floats());
    context_->Keep(cuda::Cast(context_->stream, dy, rounded, spec_.batch * spec_.out), "rounding a gradient");
    return rounded;
  }

  CudaContext* const context_;
  const DenseSpec spec_;
  DenseProducts products_;
};

cuda::PatchShape PatchesOf(const Conv2dSpec& s, int64_t images) {
  cuda::PatchShape patches = cuda::PatchShapeOf(s, s.in_channels);
  patches.images = images;
  return patches;
}

// Whether x, as it is in memory, is the matrix of columns: each row one patch, nothing twice and nothing left out.
bool ColumnsAreInput(const Conv2dSpec& s) {
  if (s.padding_height != 0 || s.padding_width != 0) return false;
  const bool pointwise = s.kernel_height == 1 && s.kernel_width == 1 && s.stride_height == 1 && s.stride_width == 1;
  return pointwise || (s.kernel_height == s.in_height && s.kernel_width == s.in_width);
}

void ConvolutionActivationGradient(CudaContext* context, const Conv2dSpec& s, ConstElements y, Elements dy,
                                   float* dbias) {
  ActivationGradient(context, {.rows = s.batch * s.out_height() * s.out_width(),
                               .channels = s.out_channels,
                               .activation = s.activation,
                               .y = y,
                               .dy = dy,
                               .dbias = dbias});
}

// By narrow_convolution.h, in fp32.
class CudaNarrowConv2d : public FloatOperation {
 public:
  CudaNarrowConv2d(CudaContext* context, const Conv2dSpec& spec)
      : context_(context), spec_(spec), patches_(PatchesOf(spec, spec.batch)) {}

  void Forward(const float* x, const float* weight, const float* bias, float* y) override {
    context_->Keep(cuda::NarrowForward(context_->stream, patches_, spec_.out_channels,
                                       {.x = x,
                                        .weight = weight,
                                        .bias = spec_.bias == Bias::kAdded ? bias : nullptr,
                                        .activation = MaskOf(spec_.activation),
                                        .y = y}),
                   "convolution");
  }

  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override {
    ConvolutionActivationGradient(context_, spec_, y, dy, dbias);
    context_->Keep(cuda::NarrowWeightGradient(context_->stream, patches_, spec_.out_channels,
                                              {.x = x,
                                               .dy = dy,
                                               .dweight = dweight,
                                               .partial = context_->scratch.floats(),
                                               .counters = context_->counters.data()}),
                   "weight gradient of a convolution");
    if (dx == nullptr) return;
    context_->Keep(cuda::NarrowInputGradient(context_->stream, patches_, spec_.out_channels, dy, weight, dx),
                   "input gradient of a convolution");
  }

 private:
  CudaContext* const context_;
  const Conv2dSpec spec_;
  const cuda::PatchShape patches_;
};

// By columns and cuBLASLt.
class CudaConv2d : public FloatOperation {
 public:
  static absl::StatusOr<std::unique_ptr<CudaConv2d>> Create(CudaContext* context, const Conv2dSpec& s,
                                                            int64_t chunk_images) {
    auto conv = std::make_unique<CudaConv2d>(context, s, chunk_images);
    ASSIGN_OR_RETURN(conv->chunk_, conv->CreateProducts(chunk_images));
    // A product of cuBLASLt has one shape, so the last, smaller chunk has products of its own.
    if (const int64_t rest = s.batch % chunk_images; rest != 0) {
      ASSIGN_OR_RETURN(conv->rest_, conv->CreateProducts(rest));
    }
    return conv;
  }

  CudaConv2d(CudaContext* context, const Conv2dSpec& spec, int64_t chunk_images)
      : context_(context), spec_(spec), chunk_images_(chunk_images), columns_are_input_(ColumnsAreInput(spec)) {}

  void Forward(const float* x, const float* weight, const float* bias, float* y) override {
    ForChunks([&](DenseProducts& products, int64_t first, int64_t images) {
      products.Forward(Columns(x, first, images), weight, bias, y + first * OutImage());
    });
  }

  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override {
    ConvolutionActivationGradient(context_, spec_, y, dy, dbias);
    ForChunks([&](DenseProducts& products, int64_t first, int64_t images) {
      const float* const chunk_dy = dy + first * OutImage();
      // Columns and the gradient of the columns share the scratch memory: the stream keeps the calls in order, and the
      // weight gradient has read the columns when the next product overwrites them.
      products.WeightGradient(Columns(x, first, images), chunk_dy, dweight,
                              first == 0 ? Write::kOverwrite : Write::kAdd);
      if (dx == nullptr) return;
      float* const chunk_dx = dx + first * InImage();
      if (columns_are_input_) return products.InputGradientOf(chunk_dy, weight, chunk_dx);
      float* const columns = context_->scratch.floats();
      // This is the gradient of the columns. Patches overlap, so col2im then adds up the elements of each pixel.
      products.InputGradientOf(chunk_dy, weight, columns);
      context_->Keep(cuda::Col2im(context_->stream, PatchesOf(spec_, images), columns, chunk_dx), "col2im");
    });
  }

 private:
  absl::StatusOr<DenseProducts> CreateProducts(int64_t images) const {
    const cuda::PatchShape patches = PatchesOf(spec_, images);
    return DenseProducts::Create(context_, {.batch = patches.rows(),
                                            .in = patches.patch(),
                                            .out = spec_.out_channels,
                                            .bias = spec_.bias,
                                            .activation = spec_.activation,
                                            .input_gradient = spec_.input_gradient});
  }

  template <typename Visit>
  void ForChunks(const Visit& visit) {
    for (int64_t first = 0; first < spec_.batch; first += chunk_images_) {
      const int64_t images = std::min(chunk_images_, spec_.batch - first);
      visit(images == chunk_images_ ? *chunk_ : *rest_, first, images);
    }
  }

  // Backward makes the columns again: those of forward were in scratch memory, which all layers share.
  const float* Columns(const float* x, int64_t first, int64_t images) {
    if (columns_are_input_) return x + first * InImage();
    float* const columns = context_->scratch.floats();
    context_->Keep(cuda::Im2col(context_->stream, PatchesOf(spec_, images), x + first * InImage(), columns), "im2col");
    return columns;
  }

  int64_t InImage() const { return spec_.in_height * spec_.in_width * spec_.in_channels; }
  int64_t OutImage() const { return spec_.out_height() * spec_.out_width() * spec_.out_channels; }

  CudaContext* const context_;
  const Conv2dSpec spec_;
  const int64_t chunk_images_;
  const bool columns_are_input_;
  std::optional<DenseProducts> chunk_, rest_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context, const DenseSpec& s) {
  ASSIGN_OR_RETURN(DenseProducts products, DenseProducts::Create(context, s));
  // The memory is reserved here and not in Backward, which may be captured.
  RETURN_IF_ERROR(ReserveForActivationGradient(context, s.batch, s.out), "dense");
  if (s.output != s.element) {
    RETURN_IF_ERROR(context->scratch.Reserve(BytesOf(s.element) * s.batch * s.out), "dense");
  }
  return std::make_unique<CudaDense>(context, s, std::move(products));
}

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context, const Conv2dSpec& s) {
  RETURN_IF_ERROR(ReserveForActivationGradient(context, s.batch * s.out_height() * s.out_width(), s.out_channels),
                  "conv2d");
  // This is a rule over shapes: cuDNN, x itself as columns, our narrow kernels, or columns. The first that applies is
  // taken.
  if (context->cudnn_handle != nullptr) {
    ASSIGN_OR_RETURN(std::unique_ptr<LayerOperation> by_cudnn, CreateCudnnConv2d(context, s));
    if (by_cudnn != nullptr) return by_cudnn;
  }
  if (s.element != Element::kFloat32) {
    return absl::InvalidArgumentError(absl::StrCat("conv2d: ",
                                                   context->cudnn_handle == nullptr
                                                       ? "bfloat16 convolutions are cuDNN's, which is not used"
                                                       : "cuDNN has no engine for this shape in bfloat16",
                                                   ", and our own kernels have none: give --math=tf32",
                                                   context->cudnn_handle == nullptr ? ", or --conv=cudnn" : ""));
  }
  if (ColumnsAreInput(s)) return CudaConv2d::Create(context, s, s.batch);
  const cuda::PatchShape image = PatchesOf(s, 1);
  if (context->math == CudaMath::kFp32 && cuda::IsNarrow(image, s.out_channels)) {
    const cuda::PatchShape patches = PatchesOf(s, s.batch);
    const int64_t partial_floats = cuda::NarrowPartialFloats(patches, s.out_channels);
    RETURN_IF_ERROR(context->scratch.Reserve(kFloatBytes * partial_floats), "conv2d");
    RETURN_IF_ERROR(context->counters.Reserve(context->stream, cuda::NarrowCounters(patches, s.out_channels)),
                    "conv2d");
    return std::make_unique<CudaNarrowConv2d>(context, s);
  }
  // Floats, not bytes, so that the product fits in 64 bits: rows and patch are below 2^31 each.
  const int64_t image_floats = image.rows() * image.patch();
  // A chunk has at least four images, even if their columns exceed the limit: it must be a multiple of four.
  const int64_t fitting = context->columns_bytes_max / kFloatBytes / image_floats / kImagesMultiple * kImagesMultiple;
  const int64_t images = std::min(s.batch, std::max(fitting, kImagesMultiple));
  // Kernels number the elements of the columns in 31 bits.
  if (image_floats > kTensorElementsMax / images) {
    return absl::InvalidArgumentError(absl::StrCat("conv2d: the columns of ", images, " images have ", images, " x ",
                                                   image_floats, " elements: at most ", kTensorElementsMax,
                                                   " are possible"));
  }
  RETURN_IF_ERROR(context->scratch.Reserve(kFloatBytes * images * image_floats), "conv2d");
  return CudaConv2d::Create(context, s, images);
}

}  // namespace starring
