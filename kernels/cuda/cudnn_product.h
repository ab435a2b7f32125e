// One of the three products of a convolution, in one shape, by an engine of cuDNN.
//
// An *engine* is an algorithm of cuDNN; a *configuration* is an engine with its knobs set (tile size, split, ...).
// cuDNN's heuristics list configurations, the best first. Create takes the first one that may be used.
//
// Bits: the choice depends on the shape, the GPU's model and cuDNN's version, never on a measurement, on free memory or
// on the environment. These engines are left out:
// - those that cuDNN notes as not deterministic;
// - those that round more than CudaMath says: in fp32 those that use tensor cores; always those that convert factors to
//   16 bits, sum in less than float32, or transform (Winograd, FFT);
// - those with a note that this build does not know;
// - those that are compiled when they are chosen: that takes seconds and needs one more library.
// Factors of kBfloat16 are stored so, and engines with tensor cores round nothing. No engine converts float32 factors
// to bfloat16: with kBf16, float32 specs are computed as in tf32. Between a convolution and what is fused to it, values
// are float32. No engine writes a weight gradient of bfloat16 factors in float32: it is rounded, as PyTorch's is.
//
// cuDNN's ReLU may turn NaN into 0, as cuBLASLt's may (matrix_product.h).
//
// Thread safety: one thread. Layers of one shape share a product.
#ifndef STARRING_KERNELS_CUDA_CUDNN_PRODUCT_H_
#define STARRING_KERNELS_CUDA_CUDNN_PRODUCT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cudnn_descriptor.h"
#include "kernels/device.h"

namespace starring {

enum class ConvolutionProduct { kForward, kInputGradient, kWeightGradient };

class CudnnProduct {
 public:
  // The largest workspace of an engine; one that wants more is left out. A constant, because the choice must not depend
  // on how much memory is free.
  static constexpr int64_t kWorkspaceBytesMax = int64_t{256} << 20;

  // kForward with `epilogue` applies the spec's bias and activation; otherwise they are left out. NotFound where no
  // engine may be used. ResourceExhausted where its workspace, which is context->scratch, does not fit.
  enum class Epilogue { kNone, kOfTheSpec };
  static absl::StatusOr<std::unique_ptr<CudnnProduct>> Create(CudaContext* context, const Conv2dSpec& spec,
                                                              ConvolutionProduct product, Epilogue epilogue);

  // "44 (2=4 18=0)": the engine's number and its knobs.
  const std::string& engine() const { return engine_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

  // kForward reads x, weight and bias and writes y; kInputGradient writes x, kWeightGradient writes weight: all
  // overwrite (=). All have the spec's elements. REQUIRES: 16-byte alignment; bias is null exactly where no bias is
  // applied.
  struct Tensors {
    const void* x = nullptr;
    const void* weight = nullptr;
    const void* y = nullptr;
    const void* bias = nullptr;
    friend bool operator==(const Tensors&, const Tensors&) = default;
  };
  // The arguments of one layer, as cuDNN wants them. Run makes them again only when an argument differs from last time.
  struct Pack {
    std::optional<CudnnDescriptor> descriptor;
    Tensors tensors;
    const float* workspace = nullptr;
  };
  [[nodiscard]] absl::Status Run(const Tensors& tensors, Pack* pack) const;

 private:
  CudnnProduct(CudaContext* context, Element element) : context_(context), element_(element) {}
  absl::Status BuildGraph(const Conv2dSpec& spec, ConvolutionProduct product, Epilogue epilogue);
  CudnnDescriptor* Add(cudnn::DescriptorType type);
  enum class Where { kMemory, kVirtual };
  absl::StatusOr<CudnnDescriptor*> AddTensor(int64_t id, const std::array<int64_t, 4>& nchw, Where where);
  absl::StatusOr<CudnnDescriptor*> AddConvolution(const Conv2dSpec& spec, ConvolutionProduct product,
                                                  const CudnnDescriptor& x, const CudnnDescriptor& weight,
                                                  const CudnnDescriptor& y);
  absl::StatusOr<CudnnDescriptor*> AddPointwise(cudnn::PointwiseMode mode, const CudnnDescriptor& x,
                                                const CudnnDescriptor* b, const CudnnDescriptor& y);
  absl::Status ChooseEngine();
  absl::StatusOr<bool> TryMode(cudnn::HeuristicsMode mode);
  absl::StatusOr<bool> TryConfiguration(CudnnDescriptor configuration);
  absl::Status Prepare(const Tensors& tensors, Pack* pack) const;

  CudaContext* const context_;
  const Element element_;
  std::vector<std::unique_ptr<CudnnDescriptor>> parts_;  // each refers to those before it
  CudnnDescriptor* graph_ = nullptr;
  std::optional<CudnnDescriptor> configuration_, plan_;
  int64_t workspace_bytes_ = 0;
  std::string engine_;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDNN_PRODUCT_H_
