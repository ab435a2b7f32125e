// A device: memory, and the operations that a layer needs. There are two. kernels/cpu computes by loops of our own and,
// for convolutions of many channels, by oneDNN; kernels/cuda by cuBLASLt, cuDNN and kernels of our own.
// kernels/README.md has the details, and how to add an operation.
//
// An operation is created once per shape, which sizes its workspaces and compiles its primitives, and is then run many
// times without allocating. Activations are NHWC, of a spec's element; dense layers see a flattened sample. Pointers
// are device pointers, 64-byte aligned unless said otherwise; parameters and their gradients are float32 and point into
// the flat vectors.
//
// Order: operations run in the order of the calls. On the CPU an operation is done when its call returns. On a GPU it
// is enqueued on the device's stream, and Synchronize waits for it.
// `=` or `+=` is part of the contract: everything below overwrites (=) unless said otherwise.
// Bits: the same inputs, shapes and number of threads give the same bits on every run.
//
// Thread safety: a device and its operations are used by one thread.
#ifndef STARRING_KERNELS_DEVICE_H_
#define STARRING_KERNELS_DEVICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/activation_math.h"
#include "kernels/element.h"

namespace starring {

inline constexpr int64_t kFloatBytes = sizeof(float);

enum class Activation { kNone, kRelu };
enum class InputGradient { kNeeded, kNotNeeded };  // the first layer needs none
enum class Bias { kNone, kAdded };

// x (batch, in_height, in_width, in_channels), weight (out, kernel_height, kernel_width, in), bias (out), y NHWC.
struct Conv2dSpec {
  int64_t batch = 0, in_height = 0, in_width = 0, in_channels = 0;
  int64_t out_channels = 0, kernel_height = 1, kernel_width = 1;
  int64_t stride_height = 1, stride_width = 1, padding_height = 0, padding_width = 0;
  Bias bias = Bias::kAdded;
  Activation activation = Activation::kNone;
  InputGradient input_gradient = InputGradient::kNeeded;
  Element element = Element::kFloat32;  // of x, weight, bias, y, dy and dx
  int64_t out_height() const { return (in_height + 2 * padding_height - kernel_height) / stride_height + 1; }
  int64_t out_width() const { return (in_width + 2 * padding_width - kernel_width) / stride_width + 1; }
};

// x (batch, in), weight (out, in), bias (out), y (batch, out): y = act(x weight^T + bias).
struct DenseSpec {
  int64_t batch = 0, in = 0, out = 0;
  Bias bias = Bias::kAdded;
  Activation activation = Activation::kNone;
  InputGradient input_gradient = InputGradient::kNeeded;
  Element element = Element::kFloat32;  // of x, weight and dx
  Element output = Element::kFloat32;   // of y, dy and bias: float32 where the loss reads y
};

// A max pool. Padding counts as -infinity. Among equal maxima the first in row-major order of the window gets the
// gradient, as in PyTorch. Forward remembers the winners for Backward.
struct Pool2dSpec {
  int64_t batch = 0, in_height = 0, in_width = 0, channels = 0;
  int64_t kernel_height = 2, kernel_width = 2, stride_height = 2, stride_width = 2, padding_height = 0,
          padding_width = 0;
  Element element = Element::kFloat32;  // of x, y, dy and dx, as in the specs below
  int64_t out_height() const { return (in_height + 2 * padding_height - kernel_height) / stride_height + 1; }
  int64_t out_width() const { return (in_width + 2 * padding_width - kernel_width) / stride_width + 1; }
};

// The mean of each window; padding counts as zeros, as in PyTorch by default.
struct AveragePool2dSpec : Pool2dSpec {};

// A convolution of each channel by itself. x and y as a pool's, weight (channels, kernel_height, kernel_width), bias
// (channels).
struct DepthwiseConv2dSpec : Pool2dSpec {
  Bias bias = Bias::kAdded;
  InputGradient input_gradient = InputGradient::kNeeded;
};

// y (batch, channels): the mean over height and width.
struct GlobalAveragePoolSpec {
  int64_t batch = 0, height = 0, width = 0, channels = 0;
  Element element = Element::kFloat32;
};

// y = f(x), element by element. y may alias x, and dx dy, unless BackwardReadsInput(function): backward then reads x,
// and otherwise y, of which that of kScale reads neither.
struct ActivationSpec {
  int64_t batch = 0, sample_elements = 0;
  ActivationFunction function = ActivationFunction::kRelu6;
  float parameter = 0;
  Element element = Element::kFloat32;
};

// One input of a concatenation along the channels: y (batch, pixels, out_channels) has x (batch, pixels, channels) in
// its channels from `offset` on. Forward leaves the other channels alone.
struct ConcatPartSpec {
  int64_t batch = 0, pixels = 0, channels = 0, out_channels = 0, offset = 0;
  Element element = Element::kFloat32;
};

// Normalises each sample's groups of neighbouring channels by their mean and (biased) variance over all pixels. x and y
// (batch, pixels, channels); weight, gamma, and bias, beta: (channels).
struct GroupNormSpec {
  int64_t batch = 0, pixels = 0, channels = 0;
  int64_t groups = 1;  // of channels / groups channels each
  float epsilon = 1e-5f;
  InputGradient input_gradient = InputGradient::kNeeded;
  Element element = Element::kFloat32;
};

// A layer's operation that depends on its tensors alone. The worker's table of layers (worker/model/layer_table.h) says
// which of x and y its backward reads.
using OperationSpec = std::variant<Conv2dSpec, DenseSpec, Pool2dSpec, GlobalAveragePoolSpec, ActivationSpec,
                                   AveragePool2dSpec, DepthwiseConv2dSpec, ConcatPartSpec, GroupNormSpec>;

// Tensors that an operation does not have are null: weight, bias and their gradients of a pool. Weight and bias have
// the elements that the specs of dense layers and convolutions say, and those of other operations are float32. Elements
// that are not float32 are 32-byte aligned there.
class LayerOperation {
 public:
  virtual ~LayerOperation() = default;
  virtual void Forward(ConstElements x, ConstElements weight, ConstElements bias, Elements y) = 0;
  // After Forward. With kRelu dy may be masked in place by y > 0. With kNone it is only read, so it may be the gradient
  // of a second tensor too. dx is null where the spec says kNotNeeded; dbias is null with Bias::kNone.
  virtual void Backward(ConstElements x, ConstElements weight, ConstElements y, Elements dy, Elements dx,
                        float* dweight, float* dbias) = 0;
};

struct BatchNormSpec {
  int64_t batch = 0, height = 0, width = 0, channels = 0;
  Activation activation = Activation::kNone;
  float epsilon = 1e-5f;
  float momentum = 0.1f;  // PyTorch's: running = (1 - momentum) * running + momentum * batch; variance unbiased there
  Element element = Element::kFloat32;  // statistics are float32
};
class BatchNorm {
 public:
  virtual ~BatchNorm() = default;
  // Training: normalises by the batch's mean and (biased) variance, updates the running ones.
  virtual void Forward(ConstElements x, const float* gamma, const float* beta, float* running_mean,
                       float* running_variance, Elements y) = 0;
  // Evaluation: normalises by the running mean and variance.
  virtual void Infer(ConstElements x, const float* gamma, const float* beta, const float* running_mean,
                     const float* running_variance, Elements y) = 0;
  // After Forward. dy as a LayerOperation's.
  virtual void Backward(ConstElements x, const float* gamma, ConstElements y, Elements dy, Elements dx, float* dgamma,
                        float* dbeta) = 0;
};

struct DropoutSpec {
  int64_t batch = 0, sample_elements = 0;
  float rate = 0.5f;  // the probability that an element is dropped; kept ones are scaled by 1 / (1 - rate)
  uint64_t seed = 0;
  uint32_t stream = 0;  // the layer's number
  Element element = Element::kFloat32;
};
// Philox word (e + p * sample_elements) decides whether element e of the sample at position p of the *global* batch of
// `step` is kept. So the mask does not depend on the rank that computes it.
class Dropout {
 public:
  virtual ~Dropout() = default;
  virtual void Forward(ConstElements x, int64_t step, int64_t first_sample, Elements y) = 0;  // y may alias x
  virtual void Backward(ConstElements dy, Elements dx) = 0;  // with the last Forward's mask; dx may alias dy
};

// The loss of a sample with the outputs y, K of them:
//   kSoftmax  -sum over c of target(label)[c] * log softmax(y)[c], where target(label)[c] = (1 - label_smoothing) *
//             onehot(label)[c] + label_smoothing / K
//   kMse      the mean over k of (y[k] - t[k])^2
//   kBce      the mean over k of -t[k] * log sigmoid(y[k]) - (1 - t[k]) * log(1 - sigmoid(y[k]))
// These are PyTorch's CrossEntropyLoss, MSELoss and BCEWithLogitsLoss.
enum class LossKind { kSoftmax, kMse, kBce };
struct LossSpec {
  LossKind kind = LossKind::kSoftmax;
  int64_t batch = 0, outputs = 0;
  float label_smoothing = 0;  // kSoftmax alone: 0 or more, below 1; at 0 the target is onehot(label)
};
// A loss compares outputs with these: labels, int32 (batch), below `outputs`; or values, float32 (batch, outputs), with
// kMse and kBce. The loss alone knows which of them the memory holds.
class LossTargets {
 public:
  LossTargets() = default;
  explicit LossTargets(const void* memory) : memory_(memory) {}
  LossTargets(const int32_t* labels) : memory_(labels) {}  // NOLINT: a pointer is what a caller has
  LossTargets(const float* values) : memory_(values) {}    // NOLINT
  const int32_t* labels() const { return static_cast<const int32_t*>(memory_); }
  const float* values() const { return static_cast<const float*>(memory_); }

 private:
  const void* memory_ = nullptr;
};
struct LossResult {
  double loss_sum = 0;  // over the batch
  // kSoftmax: samples with argmax(y) == label; the first of equal maxima. kBce: samples where y[k] > 0 is the same as
  // t[k] > 1/2 for all k. kMse: 0.
  int64_t correct = 0;
};
class Loss {
 public:
  virtual ~Loss() = default;
  // doutputs = scale * the gradient of each sample's loss; it may be null (evaluation) or alias outputs.
  virtual void Run(const float* outputs, LossTargets targets, float scale, float* doutputs) = 0;
  // Waits for the last Run.
  virtual LossResult Result() = 0;
};

// Device memory, 64-byte aligned, freed by the destructor.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual void* data() = 0;
  virtual int64_t size_bytes() const = 0;
  float* floats() { return static_cast<float*>(data()); }
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu (1 thread)", for the run record. It names the libraries that operations created so far run on, so it is asked
  // for when all are created.
  virtual std::string name() const = 0;

  // Zeroed. ResourceExhausted with the number of bytes when it does not fit.
  virtual absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t size_bytes) = 0;

  // Each fails with InvalidArgument, naming the numbers, on a shape that makes no sense (kernels/shape_checks.h).
  virtual absl::StatusOr<std::unique_ptr<LayerOperation>> CreateOperation(const OperationSpec& spec) = 0;
  virtual absl::StatusOr<std::unique_ptr<BatchNorm>> CreateBatchNorm(const BatchNormSpec& spec) = 0;
  virtual absl::StatusOr<std::unique_ptr<Dropout>> CreateDropout(const DropoutSpec& spec) = 0;
  virtual absl::StatusOr<std::unique_ptr<Loss>> CreateLoss(const LossSpec& spec) = 0;

  // The tensors of a call have the same elements.
  // y = max(x, 0), and a NaN stays a NaN; y may alias x.
  virtual void Relu(ConstElements x, Elements y, int64_t count) = 0;
  // dx = dy where y > 0, else 0; dx may alias dy.
  virtual void ReluBackward(ConstElements y, ConstElements dy, Elements dx, int64_t count) = 0;
  // y = act(a + b), a residual join; y may alias a or b.
  virtual void Add(ConstElements a, ConstElements b, Activation activation, Elements y, int64_t count) = 0;
  // dx = a + b where y > 0, else 0: the gradients of a ReLU's two readers; dx may alias a or b.
  virtual void AddReluBackward(ConstElements y, ConstElements a, ConstElements b, Elements dx, int64_t count) = 0;
  // to = from, rounded. REQUIRES: `to` has other elements than floats, as this device's operations may have.
  virtual void Cast(const float* from, Elements to, int64_t count) = 0;

  // Both are done in the order of the operations. On a GPU the host memory must stay, unchanged, until Synchronize.
  virtual void CopyToDevice(const void* host, void* device, int64_t size_bytes) = 0;
  virtual void CopyToHost(const void* device, void* host, int64_t size_bytes) = 0;
  virtual absl::Status Synchronize() = 0;
};

// The operations of a device that has float32 elements alone.
class FloatOperation : public LayerOperation {
 public:
  void Forward(ConstElements x, ConstElements weight, ConstElements bias, Elements y) final {
    Forward(x.floats(), weight.floats(), bias.floats(), y.floats());
  }
  void Backward(ConstElements x, ConstElements weight, ConstElements y, Elements dy, Elements dx, float* dweight,
                float* dbias) final {
    Backward(x.floats(), weight.floats(), y.floats(), dy.floats(), dx.floats(), dweight, dbias);
  }
  virtual void Forward(const float* x, const float* weight, const float* bias, float* y) = 0;
  virtual void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                        float* dbias) = 0;
};

class FloatBatchNorm : public BatchNorm {
 public:
  void Forward(ConstElements x, const float* gamma, const float* beta, float* running_mean, float* running_variance,
               Elements y) final {
    Forward(x.floats(), gamma, beta, running_mean, running_variance, y.floats());
  }
  void Infer(ConstElements x, const float* gamma, const float* beta, const float* running_mean,
             const float* running_variance, Elements y) final {
    Infer(x.floats(), gamma, beta, running_mean, running_variance, y.floats());
  }
  void Backward(ConstElements x, const float* gamma, ConstElements y, Elements dy, Elements dx, float* dgamma,
                float* dbeta) final {
    Backward(x.floats(), gamma, y.floats(), dy.floats(), dx.floats(), dgamma, dbeta);
  }
  virtual void Forward(const float* x, const float* gamma, const float* beta, float* running_mean,
                       float* running_variance, float* y) = 0;
  virtual void Infer(const float* x, const float* gamma, const float* beta, const float* running_mean,
                     const float* running_variance, float* y) = 0;
  virtual void Backward(const float* x, const float* gamma, const float* y, float* dy, float* dx, float* dgamma,
                        float* dbeta) = 0;
};

class FloatDropout : public Dropout {
 public:
  void Forward(ConstElements x, int64_t step, int64_t first_sample, Elements y) final {
    Forward(x.floats(), step, first_sample, y.floats());
  }
  void Backward(ConstElements dy, Elements dx) final { Backward(dy.floats(), dx.floats()); }
  virtual void Forward(const float* x, int64_t step, int64_t first_sample, float* y) = 0;
  virtual void Backward(const float* dy, float* dx) = 0;
};

}  // namespace starring

#endif  // STARRING_KERNELS_DEVICE_H_
