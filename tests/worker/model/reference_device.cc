#include "tests/worker/model/reference_device.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <variant>
#include <vector>

#include "common/arithmetic/philox.h"
#include "common/base/check.h"
#include "tests/kernels/reference.h"

namespace starring {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class ReferenceBuffer : public DeviceBuffer {
 public:
  explicit ReferenceBuffer(int64_t size_bytes)
      : size_bytes_(size_bytes), data_(std::aligned_alloc(64, (size_bytes + 64) / 64 * 64), &std::free) {
    std::fill_n(floats(), size_bytes / sizeof(float), kNan);
  }
  void* data() override { return data_.get(); }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  const int64_t size_bytes_;
  const std::unique_ptr<void, void (*)(void*)> data_;
};

float Activate(Activation activation, double value) {
  return static_cast<float>(activation == Activation::kRelu && !(value > 0) ? 0 : value);
}

// dy, masked by y > 0 if the activation is a ReLU, in double precision. Overwrites dy where the contract allows that.
std::vector<double> TakeGradient(Activation activation, const float* y, float* dy, int64_t count) {
  std::vector<double> gradient(dy, dy + count);
  if (activation == Activation::kNone) return gradient;
  for (int64_t i = 0; i < count; ++i) {
    if (!(y[i] > 0)) gradient[i] = 0;
  }
  std::fill_n(dy, count, kNan);
  return gradient;
}

reference::Values ToDouble(const float* values, int64_t count) {
  return values == nullptr ? reference::Values() : reference::Values(values, values + count);
}

class ReferenceOperation : public FloatOperation {
 public:
  explicit ReferenceOperation(const OperationSpec& spec) : spec_(spec), sizes_(reference::SizesOf(spec)) {}

  void Forward(const float* x, const float* weight, const float* bias, float* y) override {
    CHECK_EQ(bias != nullptr, sizes_.bias > 0);
    const reference::Values in = ToDouble(x, sizes_.x);
    // A max pool remembers its winners.
    if (std::holds_alternative<Pool2dSpec>(spec_)) pooled_ = in;
    const reference::Values out =
        reference::Forward(spec_, in, ToDouble(weight, sizes_.weight), ToDouble(bias, sizes_.bias));
    for (int64_t i = 0; i < sizes_.y; ++i) {
      if (!std::isnan(out[i]) || !std::holds_alternative<ConcatPartSpec>(spec_)) y[i] = static_cast<float>(out[i]);
    }
  }

  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override {
    CHECK_EQ(dbias != nullptr, sizes_.bias > 0);
    CHECK_EQ(dweight != nullptr, sizes_.weight > 0);
    const bool remembers = std::holds_alternative<Pool2dSpec>(spec_);
    const reference::Gradients gradients =
        reference::Backward(spec_, remembers ? pooled_ : ToDouble(x, sizes_.x), ToDouble(weight, sizes_.weight),
                            ToDouble(y, sizes_.y), ToDouble(dy, sizes_.y));
    std::visit([&](const auto& s) { Spoil(s, dy, dx); }, spec_);
    if (dx != nullptr) std::copy(gradients.dx.begin(), gradients.dx.end(), dx);
    if (dweight != nullptr) std::copy(gradients.dweight.begin(), gradients.dweight.end(), dweight);
    if (dbias != nullptr) std::copy(gradients.dbias.begin(), gradients.dbias.end(), dbias);
  }

 private:
  // Overwrites dy where the contract allows that.
  template <typename Spec>
  void Spoil(const Spec& spec, float* dy, const float* dx) const {
    if constexpr (requires { spec.activation; }) {
      if (spec.activation != Activation::kNone) std::fill_n(dy, sizes_.y, kNan);
    }
    if constexpr (requires { spec.input_gradient; }) {
      CHECK_EQ(dx != nullptr, spec.input_gradient == InputGradient::kNeeded);
    }
  }

  const OperationSpec spec_;
  const reference::Sizes sizes_;
  reference::Values pooled_;
};

class ReferenceBatchNorm : public FloatBatchNorm {
 public:
  explicit ReferenceBatchNorm(const BatchNormSpec& spec)
      : s_(spec), count_(s_.batch * s_.height * s_.width), mean_(s_.channels), inverse_(s_.channels) {}

  void Forward(const float* x, const float* gamma, const float* beta, float* running_mean, float* running_variance,
               float* y) override {
    const double count = static_cast<double>(count_);
    for (int64_t c = 0; c < s_.channels; ++c) {
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < count_; ++i) sum += x[i * s_.channels + c];
      mean_[c] = sum / count;
      for (int64_t i = 0; i < count_; ++i) squares += std::pow(x[i * s_.channels + c] - mean_[c], 2);
      inverse_[c] = 1 / std::sqrt(squares / count + s_.epsilon);
      const double unbiased = count_ > 1 ? squares / (count - 1) : 0;
      running_mean[c] = static_cast<float>((1 - s_.momentum) * running_mean[c] + s_.momentum * mean_[c]);
      running_variance[c] = static_cast<float>((1 - s_.momentum) * running_variance[c] + s_.momentum * unbiased);
    }
    Normalise(x, gamma, beta, y);
  }

  void Infer(const float* x, const float* gamma, const float* beta, const float* running_mean,
             const float* running_variance, float* y) override {
    for (int64_t c = 0; c < s_.channels; ++c) {
      mean_[c] = running_mean[c];
      inverse_[c] = 1 / std::sqrt(double{running_variance[c]} + s_.epsilon);
    }
    Normalise(x, gamma, beta, y);
  }

  void Backward(const float* x, const float* gamma, const float* y, float* dy, float* dx, float* dgamma,
                float* dbeta) override {
    const std::vector<double> gradient = TakeGradient(s_.activation, y, dy, count_ * s_.channels);
    const double count = static_cast<double>(count_);
    for (int64_t c = 0; c < s_.channels; ++c) {
      double sum = 0, product = 0;
      for (int64_t i = 0; i < count_; ++i) {
        sum += gradient[i * s_.channels + c];
        product += gradient[i * s_.channels + c] * (x[i * s_.channels + c] - mean_[c]) * inverse_[c];
      }
      dgamma[c] = static_cast<float>(product);
      dbeta[c] = static_cast<float>(sum);
      for (int64_t i = 0; i < count_; ++i) {
        const double normalised = (x[i * s_.channels + c] - mean_[c]) * inverse_[c];
        dx[i * s_.channels + c] = static_cast<float>(
            gamma[c] * inverse_[c] * (gradient[i * s_.channels + c] - sum / count - normalised * product / count));
      }
    }
  }

 private:
  void Normalise(const float* x, const float* gamma, const float* beta, float* y) const {
    for (int64_t i = 0; i < count_ * s_.channels; ++i) {
      const int64_t c = i % s_.channels;
      y[i] = Activate(s_.activation, (x[i] - mean_[c]) * inverse_[c] * gamma[c] + beta[c]);
    }
  }

  const BatchNormSpec s_;
  const int64_t count_;
  std::vector<double> mean_, inverse_;
};

class ReferenceDropout : public FloatDropout {
 public:
  explicit ReferenceDropout(const DropoutSpec& spec) : s_(spec), factors_(s_.batch * s_.sample_elements) {}

  void Forward(const float* x, int64_t step, int64_t first_sample, float* y) override {
    const RandomKey key{
        .seed = s_.seed, .purpose = RandomPurpose::kDropout, .stream = s_.stream, .epoch = static_cast<uint32_t>(step)};
    for (size_t i = 0; i < factors_.size(); ++i) {
      const uint64_t word = i + first_sample * s_.sample_elements;
      factors_[i] = UnitFloat(key.At(word / 4)[word % 4]) < s_.rate ? 0 : 1 / (1 - s_.rate);
      y[i] = x[i] * factors_[i];
    }
  }
  void Backward(const float* dy, float* dx) override {
    for (size_t i = 0; i < factors_.size(); ++i) dx[i] = dy[i] * factors_[i];
  }

 private:
  const DropoutSpec s_;
  std::vector<float> factors_;
};

class ReferenceSoftmaxCrossEntropy : public Loss {
 public:
  explicit ReferenceSoftmaxCrossEntropy(const LossSpec& spec) : s_(spec) {}

  void Run(const float* logits, LossTargets targets, float scale, float* dlogits) override {
    const int32_t* const labels = targets.labels();
    result_ = {};
    for (int64_t n = 0; n < s_.batch; ++n) {
      const std::vector<double> row(logits + n * s_.outputs, logits + (n + 1) * s_.outputs);
      const auto best = std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const double value : row) sum += std::exp(value - *best);
      result_.correct += best - row.begin() == labels[n];
      for (int64_t c = 0; c < s_.outputs; ++c) {
        const double smoothing = s_.label_smoothing;
        const double target = smoothing / static_cast<double>(s_.outputs) + (c == labels[n] ? 1 - smoothing : 0);
        result_.loss_sum += target * (std::log(sum) + *best - row[c]);
        if (dlogits == nullptr) continue;
        const double softmax = std::exp(row[c] - *best) / sum;
        dlogits[n * s_.outputs + c] = static_cast<float>(scale * (softmax - target));
      }
    }
  }
  LossResult Result() override { return result_; }

 private:
  const LossSpec s_;
  LossResult result_;
};

// kMse and kBce, by definition.
class ReferenceValueLoss : public Loss {
 public:
  explicit ReferenceValueLoss(const LossSpec& spec) : s_(spec) {}

  void Run(const float* outputs, LossTargets targets, float scale, float* doutputs) override {
    result_ = {};
    const auto width = static_cast<double>(s_.outputs);
    for (int64_t n = 0; n < s_.batch; ++n) {
      bool right = s_.kind == LossKind::kBce;
      for (int64_t i = n * s_.outputs; i < (n + 1) * s_.outputs; ++i) {
        const double y = outputs[i], t = targets.values()[i], sigmoid = 1 / (1 + std::exp(-y));
        const bool is_mse = s_.kind == LossKind::kMse;
        const double loss = is_mse ? (y - t) * (y - t) : -t * std::log(sigmoid) - (1 - t) * std::log(1 - sigmoid);
        result_.loss_sum += loss / width;
        right = right && (y > 0) == (t > 0.5);
        const double gradient = is_mse ? 2 * (y - t) : sigmoid - t;
        if (doutputs != nullptr) doutputs[i] = static_cast<float>(scale * gradient / width);
      }
      result_.correct += right ? 1 : 0;
    }
  }
  LossResult Result() override { return result_; }

 private:
  const LossSpec s_;
  LossResult result_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBuffer>> ReferenceDevice::Allocate(int64_t size_bytes) {
  return std::make_unique<ReferenceBuffer>(size_bytes);
}
absl::StatusOr<std::unique_ptr<LayerOperation>> ReferenceDevice::CreateOperation(const OperationSpec& spec) {
  ++operations_created_;
  return std::make_unique<ReferenceOperation>(spec);
}
absl::StatusOr<std::unique_ptr<BatchNorm>> ReferenceDevice::CreateBatchNorm(const BatchNormSpec& spec) {
  ++operations_created_;
  return std::make_unique<ReferenceBatchNorm>(spec);
}
absl::StatusOr<std::unique_ptr<Dropout>> ReferenceDevice::CreateDropout(const DropoutSpec& spec) {
  ++operations_created_;
  return std::make_unique<ReferenceDropout>(spec);
}
absl::StatusOr<std::unique_ptr<Loss>> ReferenceDevice::CreateLoss(const LossSpec& spec) {
  ++operations_created_;
  if (spec.kind == LossKind::kSoftmax) return std::make_unique<ReferenceSoftmaxCrossEntropy>(spec);
  return std::make_unique<ReferenceValueLoss>(spec);
}

void ReferenceDevice::Relu(ConstElements in, Elements out, int64_t count) {
  const float* const x = in.floats();
  for (int64_t i = 0; i < count; ++i) out.floats()[i] = x[i] > 0 ? x[i] : 0;
}
void ReferenceDevice::ReluBackward(ConstElements output, ConstElements dy, Elements dx, int64_t count) {
  const float* const y = output.floats();
  for (int64_t i = 0; i < count; ++i) dx.floats()[i] = y[i] > 0 ? dy.floats()[i] : 0;
}
void ReferenceDevice::Add(ConstElements a, ConstElements b, Activation activation, Elements y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y.floats()[i] = Activate(activation, a.floats()[i] + b.floats()[i]);
}
void ReferenceDevice::AddReluBackward(ConstElements output, ConstElements a, ConstElements b, Elements dx,
                                      int64_t count) {
  const float* const y = output.floats();
  for (int64_t i = 0; i < count; ++i) dx.floats()[i] = y[i] > 0 ? a.floats()[i] + b.floats()[i] : 0;
}
void ReferenceDevice::Cast(const float*, Elements, int64_t) { CHECK(false) << "float32 alone"; }
void ReferenceDevice::CopyToDevice(const void* host, void* device, int64_t size_bytes) {
  std::memcpy(device, host, size_bytes);
}
void ReferenceDevice::CopyToHost(const void* device, void* host, int64_t size_bytes) {
  std::memcpy(host, device, size_bytes);
}

}  // namespace starring
