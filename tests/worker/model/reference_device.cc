#include "tests/worker/model/reference_device.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "common/arithmetic/philox.h"
#include "common/base/check.h"

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

class ReferenceConv2d : public Conv2d {
 public:
  explicit ReferenceConv2d(const Conv2dSpec& spec) : s_(spec) {}

  void Forward(const float* x, const float* weight, const float* bias, float* y) override {
    std::vector<double> sums(OutCount(), 0);
    ForEachProduct([&](int64_t xi, int64_t wi, int64_t yi) { sums[yi] += double{x[xi]} * weight[wi]; });
    for (int64_t i = 0; i < OutCount(); ++i) {
      y[i] = Activate(s_.activation, sums[i] + (s_.bias == Bias::kAdded ? bias[i % s_.out_channels] : 0));
    }
  }

  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override {
    const std::vector<double> gradient = TakeGradient(s_.activation, y, dy, OutCount());
    std::vector<double> weight_sums(s_.out_channels * s_.kernel_height * s_.kernel_width * s_.in_channels, 0);
    std::vector<double> x_sums(s_.batch * s_.in_height * s_.in_width * s_.in_channels, 0);
    std::vector<double> bias_sums(s_.out_channels, 0);
    ForEachProduct([&](int64_t xi, int64_t wi, int64_t yi) {
      weight_sums[wi] += x[xi] * gradient[yi];
      x_sums[xi] += weight[wi] * gradient[yi];
    });
    for (int64_t i = 0; i < OutCount(); ++i) bias_sums[i % s_.out_channels] += gradient[i];
    std::copy(weight_sums.begin(), weight_sums.end(), dweight);
    CHECK_EQ(dx != nullptr, s_.input_gradient == InputGradient::kNeeded);
    CHECK_EQ(dbias != nullptr, s_.bias == Bias::kAdded);
    if (dx != nullptr) std::copy(x_sums.begin(), x_sums.end(), dx);
    if (dbias != nullptr) std::copy(bias_sums.begin(), bias_sums.end(), dbias);
  }

 private:
  int64_t OutCount() const { return s_.batch * s_.out_height() * s_.out_width() * s_.out_channels; }

  // visit(index in x, index in weight, index in y) for every product of the convolution.
  template <typename Visit>
  void ForEachProduct(Visit visit) const {
    for (int64_t place = 0; place < s_.batch * s_.out_height() * s_.out_width(); ++place) {
      const int64_t n = place / (s_.out_height() * s_.out_width());
      const int64_t oh = place / s_.out_width() % s_.out_height();
      const int64_t ow = place % s_.out_width();
      for (int64_t k = 0; k < s_.kernel_height * s_.kernel_width; ++k) {
        const int64_t ih = oh * s_.stride_height - s_.padding_height + k / s_.kernel_width;
        const int64_t iw = ow * s_.stride_width - s_.padding_width + k % s_.kernel_width;
        if (ih < 0 || ih >= s_.in_height || iw < 0 || iw >= s_.in_width) continue;
        const int64_t x_begin = ((n * s_.in_height + ih) * s_.in_width + iw) * s_.in_channels;
        for (int64_t o = 0; o < s_.out_channels; ++o) {
          const int64_t w_begin = (o * s_.kernel_height * s_.kernel_width + k) * s_.in_channels;
          for (int64_t i = 0; i < s_.in_channels; ++i) visit(x_begin + i, w_begin + i, place * s_.out_channels + o);
        }
      }
    }
  }

  const Conv2dSpec s_;
};

class ReferenceDense : public Dense {
 public:
  explicit ReferenceDense(const DenseSpec& spec) : s_(spec) {}

  void Forward(const float* x, const float* weight, const float* bias, float* y) override {
    for (int64_t n = 0; n < s_.batch; ++n) {
      for (int64_t o = 0; o < s_.out; ++o) {
        double sum = s_.bias == Bias::kAdded ? bias[o] : 0;
        for (int64_t i = 0; i < s_.in; ++i) sum += double{x[n * s_.in + i]} * weight[o * s_.in + i];
        y[n * s_.out + o] = Activate(s_.activation, sum);
      }
    }
  }

  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override {
    const std::vector<double> gradient = TakeGradient(s_.activation, y, dy, s_.batch * s_.out);
    CHECK_EQ(dx != nullptr, s_.input_gradient == InputGradient::kNeeded);
    CHECK_EQ(dbias != nullptr, s_.bias == Bias::kAdded);
    for (int64_t o = 0; o < s_.out; ++o) {
      for (int64_t i = 0; i < s_.in; ++i) {
        double sum = 0;
        for (int64_t n = 0; n < s_.batch; ++n) sum += x[n * s_.in + i] * gradient[n * s_.out + o];
        dweight[o * s_.in + i] = static_cast<float>(sum);
      }
      double sum = 0;
      for (int64_t n = 0; n < s_.batch; ++n) sum += gradient[n * s_.out + o];
      if (dbias != nullptr) dbias[o] = static_cast<float>(sum);
    }
    for (int64_t n = 0; dx != nullptr && n < s_.batch; ++n) {
      for (int64_t i = 0; i < s_.in; ++i) {
        double sum = 0;
        for (int64_t o = 0; o < s_.out; ++o) sum += weight[o * s_.in + i] * gradient[n * s_.out + o];
        dx[n * s_.in + i] = static_cast<float>(sum);
      }
    }
  }

 private:
  const DenseSpec s_;
};

class ReferenceMaxPool2d : public MaxPool2d {
 public:
  explicit ReferenceMaxPool2d(const Pool2dSpec& spec)
      : s_(spec), winners_(s_.batch * s_.out_height() * s_.out_width() * s_.channels) {}

  void Forward(const float* x, float* y) override {
    for (size_t out = 0; out < winners_.size(); ++out) {
      const int64_t c = out % s_.channels;
      const int64_t ow = out / s_.channels % s_.out_width();
      const int64_t oh = out / s_.channels / s_.out_width() % s_.out_height();
      const int64_t n = out / s_.channels / s_.out_width() / s_.out_height();
      int64_t best = -1;
      for (int64_t k = 0; k < s_.kernel_height * s_.kernel_width; ++k) {
        const int64_t ih = oh * s_.stride_height - s_.padding_height + k / s_.kernel_width;
        const int64_t iw = ow * s_.stride_width - s_.padding_width + k % s_.kernel_width;
        if (ih < 0 || ih >= s_.in_height || iw < 0 || iw >= s_.in_width) continue;
        const int64_t in = ((n * s_.in_height + ih) * s_.in_width + iw) * s_.channels + c;
        if (best < 0 || x[in] > x[best]) best = in;
      }
      winners_[out] = best;
      y[out] = x[best];
    }
  }

  void Backward(const float* dy, float* dx) override {
    std::fill_n(dx, s_.batch * s_.in_height * s_.in_width * s_.channels, 0.0f);
    for (size_t out = 0; out < winners_.size(); ++out) dx[winners_[out]] += dy[out];
  }

 private:
  const Pool2dSpec s_;
  std::vector<int64_t> winners_;
};

class ReferenceGlobalAveragePool : public GlobalAveragePool {
 public:
  explicit ReferenceGlobalAveragePool(const GlobalAveragePoolSpec& spec) : s_(spec), area_(s_.height * s_.width) {}

  void Forward(const float* x, float* y) override {
    for (int64_t out = 0; out < s_.batch * s_.channels; ++out) {
      double sum = 0;
      for (int64_t a = 0; a < area_; ++a) sum += x[Index(out, a)];
      y[out] = static_cast<float>(sum / static_cast<double>(area_));
    }
  }
  void Backward(const float* dy, float* dx) override {
    for (int64_t out = 0; out < s_.batch * s_.channels; ++out) {
      for (int64_t a = 0; a < area_; ++a) dx[Index(out, a)] = dy[out] / static_cast<float>(area_);
    }
  }

 private:
  int64_t Index(int64_t out, int64_t a) const {
    return (out / s_.channels * area_ + a) * s_.channels + out % s_.channels;
  }
  const GlobalAveragePoolSpec s_;
  const int64_t area_;
};

class ReferenceBatchNorm : public BatchNorm {
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

class ReferenceDropout : public Dropout {
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

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBuffer>> ReferenceDevice::Allocate(int64_t size_bytes) {
  return std::make_unique<ReferenceBuffer>(size_bytes);
}
absl::StatusOr<std::unique_ptr<Conv2d>> ReferenceDevice::CreateConv2d(const Conv2dSpec& spec) {
  ++operations_created_;
  return std::make_unique<ReferenceConv2d>(spec);
}
absl::StatusOr<std::unique_ptr<Dense>> ReferenceDevice::CreateDense(const DenseSpec& spec) {
  ++operations_created_;
  return std::make_unique<ReferenceDense>(spec);
}
absl::StatusOr<std::unique_ptr<MaxPool2d>> ReferenceDevice::CreateMaxPool2d(const Pool2dSpec& spec) {
  ++operations_created_;
  return std::make_unique<ReferenceMaxPool2d>(spec);
}
absl::StatusOr<std::unique_ptr<GlobalAveragePool>> ReferenceDevice::CreateGlobalAveragePool(
    const GlobalAveragePoolSpec& spec) {
  ++operations_created_;
  return std::make_unique<ReferenceGlobalAveragePool>(spec);
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
  return std::make_unique<ReferenceSoftmaxCrossEntropy>(spec);
}

void ReferenceDevice::Relu(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] > 0 ? x[i] : 0;
}
void ReferenceDevice::ReluBackward(const float* y, const float* dy, float* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = y[i] > 0 ? dy[i] : 0;
}
void ReferenceDevice::Add(const float* a, const float* b, Activation activation, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = Activate(activation, a[i] + b[i]);
}
void ReferenceDevice::AddReluBackward(const float* y, const float* a, const float* b, float* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = y[i] > 0 ? a[i] + b[i] : 0;
}
void ReferenceDevice::CopyToDevice(const void* host, void* device, int64_t size_bytes) {
  std::memcpy(device, host, size_bytes);
}
void ReferenceDevice::CopyToHost(const void* device, void* host, int64_t size_bytes) {
  std::memcpy(host, device, size_bytes);
}

}  // namespace starring
