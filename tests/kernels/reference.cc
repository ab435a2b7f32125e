#include "tests/kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

#include "common/base/check.h"

namespace starring::reference {
namespace {

// Calls visit(y index, x index, weight index) for every product of a convolution.
template <typename Visit>
void ForEachProduct(const Conv2dSpec& s, const Visit& visit) {
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t oh = 0; oh < s.out_height(); ++oh) {
      for (int64_t ow = 0; ow < s.out_width(); ++ow) {
        for (int64_t kh = 0; kh < s.kernel_height; ++kh) {
          for (int64_t kw = 0; kw < s.kernel_width; ++kw) {
            const int64_t ih = oh * s.stride_height + kh - s.padding_height;
            const int64_t iw = ow * s.stride_width + kw - s.padding_width;
            if (ih < 0 || ih >= s.in_height || iw < 0 || iw >= s.in_width) continue;
            for (int64_t oc = 0; oc < s.out_channels; ++oc) {
              for (int64_t ic = 0; ic < s.in_channels; ++ic) {
                visit(((n * s.out_height() + oh) * s.out_width() + ow) * s.out_channels + oc,
                      ((n * s.in_height + ih) * s.in_width + iw) * s.in_channels + ic,
                      ((oc * s.kernel_height + kh) * s.kernel_width + kw) * s.in_channels + ic);
              }
            }
          }
        }
      }
    }
  }
}

void Activate(Activation activation, Values& y) {
  if (activation == Activation::kNone) return;
  for (double& v : y) v = std::max(v, 0.0);
}

void Mask(Activation activation, const Values& y, Values& dy) {
  if (activation == Activation::kNone) return;
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!(y[i] > 0)) dy[i] = 0;
  }
}

// Calls visit(y index, x indices of the window inside the input) in row-major window order.
template <typename Visit>
void ForEachWindow(const Pool2dSpec& s, const Visit& visit) {
  int64_t y = 0;
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t oh = 0; oh < s.out_height(); ++oh) {
      for (int64_t ow = 0; ow < s.out_width(); ++ow) {
        for (int64_t c = 0; c < s.channels; ++c) {
          std::vector<int64_t> window;
          for (int64_t kh = 0; kh < s.kernel_height; ++kh) {
            for (int64_t kw = 0; kw < s.kernel_width; ++kw) {
              const int64_t ih = oh * s.stride_height + kh - s.padding_height;
              const int64_t iw = ow * s.stride_width + kw - s.padding_width;
              if (ih < 0 || ih >= s.in_height || iw < 0 || iw >= s.in_width) continue;
              window.push_back(((n * s.in_height + ih) * s.in_width + iw) * s.channels + c);
            }
          }
          visit(y++, window);
        }
      }
    }
  }
}

int64_t Winner(const Values& x, const std::vector<int64_t>& window) {
  int64_t best = window.front();
  for (const int64_t i : window) {
    if (x[i] > x[best]) best = i;
  }
  return best;
}

}  // namespace

Values Conv2d(const Conv2dSpec& s, const Values& x, const Values& weight, const Values& bias) {
  Values y(s.batch * s.out_height() * s.out_width() * s.out_channels);
  for (size_t i = 0; i < y.size(); ++i) y[i] = bias.empty() ? 0 : bias[i % s.out_channels];
  ForEachProduct(s, [&](int64_t iy, int64_t ix, int64_t iw) { y[iy] += x[ix] * weight[iw]; });
  Activate(s.activation, y);
  return y;
}

Gradients Conv2dBackward(const Conv2dSpec& s, const Values& x, const Values& weight, const Values& y, Values dy) {
  Mask(s.activation, y, dy);
  Gradients g{Values(x.size()), Values(weight.size()), Values(s.out_channels)};
  ForEachProduct(s, [&](int64_t iy, int64_t ix, int64_t iw) {
    g.dx[ix] += dy[iy] * weight[iw];
    g.dweight[iw] += dy[iy] * x[ix];
  });
  for (size_t i = 0; i < dy.size(); ++i) g.dbias[i % s.out_channels] += dy[i];
  return g;
}

Values Dense(const DenseSpec& s, const Values& x, const Values& weight, const Values& bias) {
  Values y(s.batch * s.out);
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t o = 0; o < s.out; ++o) {
      double sum = bias.empty() ? 0 : bias[o];
      for (int64_t i = 0; i < s.in; ++i) sum += x[n * s.in + i] * weight[o * s.in + i];
      y[n * s.out + o] = sum;
    }
  }
  Activate(s.activation, y);
  return y;
}

Gradients DenseBackward(const DenseSpec& s, const Values& x, const Values& weight, const Values& y, Values dy) {
  Mask(s.activation, y, dy);
  Gradients g{Values(x.size()), Values(weight.size()), Values(s.out)};
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t o = 0; o < s.out; ++o) {
      const double d = dy[n * s.out + o];
      g.dbias[o] += d;
      for (int64_t i = 0; i < s.in; ++i) {
        g.dx[n * s.in + i] += d * weight[o * s.in + i];
        g.dweight[o * s.in + i] += d * x[n * s.in + i];
      }
    }
  }
  return g;
}

Values MaxPool2d(const Pool2dSpec& s, const Values& x) {
  Values y(s.batch * s.out_height() * s.out_width() * s.channels);
  ForEachWindow(s, [&](int64_t iy, const std::vector<int64_t>& window) { y[iy] = x[Winner(x, window)]; });
  return y;
}

Values MaxPool2dBackward(const Pool2dSpec& s, const Values& x, const Values& dy) {
  Values dx(x.size());
  ForEachWindow(s, [&](int64_t iy, const std::vector<int64_t>& window) { dx[Winner(x, window)] += dy[iy]; });
  return dx;
}

Values GlobalAveragePool(const GlobalAveragePoolSpec& s, const Values& x) {
  Values y(s.batch * s.channels);
  const int64_t space = s.height * s.width;
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    y[i / (space * s.channels) * s.channels + i % s.channels] += x[i] / static_cast<double>(space);
  }
  return y;
}

Values GlobalAveragePoolBackward(const GlobalAveragePoolSpec& s, const Values& dy) {
  const int64_t space = s.height * s.width;
  Values dx(s.batch * space * s.channels);
  for (int64_t i = 0; i < std::ssize(dx); ++i) {
    dx[i] = dy[i / (space * s.channels) * s.channels + i % s.channels] / static_cast<double>(space);
  }
  return dx;
}

namespace {

Sizes SizesOfSpec(const Conv2dSpec& s) {
  return {.x = s.batch * s.in_height * s.in_width * s.in_channels,
          .y = s.batch * s.out_height() * s.out_width() * s.out_channels,
          .weight = s.out_channels * s.kernel_height * s.kernel_width * s.in_channels,
          .bias = s.bias == Bias::kAdded ? s.out_channels : 0};
}
Sizes SizesOfSpec(const DenseSpec& s) {
  return {
      .x = s.batch * s.in, .y = s.batch * s.out, .weight = s.out * s.in, .bias = s.bias == Bias::kAdded ? s.out : 0};
}
Sizes SizesOfSpec(const Pool2dSpec& s) {
  return {.x = s.batch * s.in_height * s.in_width * s.channels,
          .y = s.batch * s.out_height() * s.out_width() * s.channels};
}
Sizes SizesOfSpec(const GlobalAveragePoolSpec& s) {
  return {.x = s.batch * s.height * s.width * s.channels, .y = s.batch * s.channels};
}

Values ForwardOf(const Conv2dSpec& s, const Values& x, const Values& weight, const Values& bias) {
  return Conv2d(s, x, weight, bias);
}
Values ForwardOf(const DenseSpec& s, const Values& x, const Values& weight, const Values& bias) {
  return Dense(s, x, weight, bias);
}
Values ForwardOf(const Pool2dSpec& s, const Values& x, const Values&, const Values&) { return MaxPool2d(s, x); }
Values ForwardOf(const GlobalAveragePoolSpec& s, const Values& x, const Values&, const Values&) {
  return GlobalAveragePool(s, x);
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1)); }
// gelu_tanh is x * sigmoid(GeluTanhExponent(x)).
double GeluTanhExponent(double x) { return std::sqrt(8 / std::acos(-1)) * (x + 0.044715 * x * x * x); }

double ActivationAt(const ActivationSpec& s, double x) {
  switch (s.function) {
    case ActivationFunction::kRelu6:
      return std::min(std::max(x, 0.0), 6.0);
    case ActivationFunction::kSigmoid:
      return Sigmoid(x);
    case ActivationFunction::kTanh:
      return std::tanh(x);
    case ActivationFunction::kGelu:
      return x * std::erfc(-x / std::sqrt(2)) / 2;
    case ActivationFunction::kGeluTanh:
      return x * Sigmoid(GeluTanhExponent(x));
    case ActivationFunction::kSilu:
      return x * Sigmoid(x);
    case ActivationFunction::kLeakyRelu:
      return x > 0 ? x : x * s.parameter;
    case ActivationFunction::kScale:
      break;
  }
  return x * s.parameter;
}

// `at` is x or y, as BackwardReadsInput says.
double SlopeAt(const ActivationSpec& s, double at) {
  const double sigmoid = Sigmoid(s.function == ActivationFunction::kGeluTanh ? GeluTanhExponent(at) : at);
  switch (s.function) {
    case ActivationFunction::kRelu6:
      return at > 0 && at < 6 ? 1 : 0;
    case ActivationFunction::kSigmoid:
      return at * (1 - at);
    case ActivationFunction::kTanh:
      return 1 - at * at;
    case ActivationFunction::kGelu:
      return std::erfc(-at / std::sqrt(2)) / 2 + at * Density(at);
    case ActivationFunction::kGeluTanh:
      return sigmoid + at * sigmoid * (1 - sigmoid) * std::sqrt(8 / std::acos(-1)) * (1 + 3 * 0.044715 * at * at);
    case ActivationFunction::kSilu:
      return sigmoid + at * sigmoid * (1 - sigmoid);
    case ActivationFunction::kLeakyRelu:
      return at > 0 ? 1 : s.parameter;
    case ActivationFunction::kScale:
      break;
  }
  return s.parameter;
}

Sizes SizesOfSpec(const ActivationSpec& s) {
  return {.x = s.batch * s.sample_elements, .y = s.batch * s.sample_elements};
}
Values ForwardOf(const ActivationSpec& s, const Values& x, const Values&, const Values&) {
  Values y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = ActivationAt(s, x[i]);
  return y;
}
Gradients BackwardOf(const ActivationSpec& s, const Values& x, const Values&, const Values& y, const Values& dy) {
  Values dx(dy.size());
  const bool constant = s.function == ActivationFunction::kScale;
  const Values& at = constant ? dy : BackwardReadsInput(s.function) ? x : y;
  for (size_t i = 0; i < dx.size(); ++i) dx[i] = dy[i] * SlopeAt(s, at[i]);
  return {dx, {}, {}};
}

Sizes SizesOfSpec(const AveragePool2dSpec& s) { return SizesOfSpec(static_cast<const Pool2dSpec&>(s)); }
Values ForwardOf(const AveragePool2dSpec& s, const Values& x, const Values&, const Values&) {
  Values y(SizesOfSpec(s).y);
  const double places = static_cast<double>(s.kernel_height * s.kernel_width);
  ForEachWindow(s, [&](int64_t iy, const std::vector<int64_t>& window) {
    for (const int64_t i : window) y[iy] += x[i] / places;
  });
  return y;
}
Gradients BackwardOf(const AveragePool2dSpec& s, const Values&, const Values&, const Values&, const Values& dy) {
  Values dx(SizesOfSpec(s).x);
  const double places = static_cast<double>(s.kernel_height * s.kernel_width);
  ForEachWindow(s, [&](int64_t iy, const std::vector<int64_t>& window) {
    for (const int64_t i : window) dx[i] += dy[iy] / places;
  });
  return {dx, {}, {}};
}

// The convolution of one channel.
Conv2dSpec ChannelOf(const DepthwiseConv2dSpec& s) {
  return {.batch = s.batch,
          .in_height = s.in_height,
          .in_width = s.in_width,
          .in_channels = 1,
          .out_channels = 1,
          .kernel_height = s.kernel_height,
          .kernel_width = s.kernel_width,
          .stride_height = s.stride_height,
          .stride_width = s.stride_width,
          .padding_height = s.padding_height,
          .padding_width = s.padding_width,
          .bias = s.bias};
}
// Every channels-th value from `channel` on, and back.
Values Take(const Values& values, int64_t channel, int64_t channels) {
  Values taken;
  for (int64_t i = channel; i < std::ssize(values); i += channels) taken.push_back(values[i]);
  return taken;
}
void Put(const Values& taken, int64_t channel, int64_t channels, Values& values) {
  for (size_t i = 0; i < taken.size(); ++i) values[i * channels + channel] = taken[i];
}
Values WeightOf(const DepthwiseConv2dSpec& s, const Values& weight, int64_t channel) {
  const int64_t taps = s.kernel_height * s.kernel_width;
  return {weight.begin() + channel * taps, weight.begin() + (channel + 1) * taps};
}

Sizes SizesOfSpec(const DepthwiseConv2dSpec& s) {
  Sizes sizes = SizesOfSpec(static_cast<const Pool2dSpec&>(s));
  sizes.weight = s.channels * s.kernel_height * s.kernel_width;
  sizes.bias = s.bias == Bias::kAdded ? s.channels : 0;
  return sizes;
}
Values ForwardOf(const DepthwiseConv2dSpec& s, const Values& x, const Values& weight, const Values& bias) {
  Values y(SizesOfSpec(s).y);
  for (int64_t c = 0; c < s.channels; ++c) {
    const Values of_channel = bias.empty() ? Values() : Values{bias[c]};
    Put(Conv2d(ChannelOf(s), Take(x, c, s.channels), WeightOf(s, weight, c), of_channel), c, s.channels, y);
  }
  return y;
}
Gradients BackwardOf(const DepthwiseConv2dSpec& s, const Values& x, const Values& weight, const Values&,
                     const Values& dy) {
  const Sizes sizes = SizesOfSpec(s);
  Gradients all{Values(sizes.x), {}, {}};
  for (int64_t c = 0; c < s.channels; ++c) {
    const Gradients one =
        Conv2dBackward(ChannelOf(s), Take(x, c, s.channels), WeightOf(s, weight, c), {}, Take(dy, c, s.channels));
    Put(one.dx, c, s.channels, all.dx);
    all.dweight.insert(all.dweight.end(), one.dweight.begin(), one.dweight.end());
    if (sizes.bias > 0) all.dbias.push_back(one.dbias[0]);
  }
  return all;
}

Sizes SizesOfSpec(const ConcatPartSpec& s) {
  return {.x = s.batch * s.pixels * s.channels, .y = s.batch * s.pixels * s.out_channels};
}
int64_t PlaceOf(const ConcatPartSpec& s, int64_t x) {
  return x / s.channels * s.out_channels + s.offset + x % s.channels;
}
Values ForwardOf(const ConcatPartSpec& s, const Values& x, const Values&, const Values&) {
  Values y(SizesOfSpec(s).y, std::numeric_limits<double>::quiet_NaN());
  for (int64_t i = 0; i < std::ssize(x); ++i) y[PlaceOf(s, i)] = x[i];
  return y;
}
Gradients BackwardOf(const ConcatPartSpec& s, const Values&, const Values&, const Values&, const Values& dy) {
  Values dx(SizesOfSpec(s).x);
  for (int64_t i = 0; i < std::ssize(dx); ++i) dx[i] = dy[PlaceOf(s, i)];
  return {dx, {}, {}};
}

Sizes SizesOfSpec(const GroupNormSpec& s) {
  const int64_t count = s.batch * s.pixels * s.channels;
  return {.x = count, .y = count, .weight = s.channels, .bias = s.channels};
}
// Calls visit(place of x, channel) for every value of one group of one sample.
template <typename Visit>
void ForGroup(const GroupNormSpec& s, int64_t group, const Visit& visit) {
  const int64_t width = s.channels / s.groups, first = group % s.groups * width;
  for (int64_t p = 0; p < s.pixels; ++p) {
    for (int64_t c = first; c < first + width; ++c) visit((group / s.groups * s.pixels + p) * s.channels + c, c);
  }
}
struct GroupMoments {
  double mean = 0, deviation = 0, count = 0;
};
GroupMoments MomentsOf(const GroupNormSpec& s, int64_t group, const Values& x) {
  GroupMoments m{.count = static_cast<double>(s.pixels * s.channels / s.groups)};
  ForGroup(s, group, [&](int64_t i, int64_t) { m.mean += x[i] / m.count; });
  double variance = 0;
  ForGroup(s, group, [&](int64_t i, int64_t) { variance += (x[i] - m.mean) * (x[i] - m.mean) / m.count; });
  m.deviation = std::sqrt(variance + double{s.epsilon});
  return m;
}
Values ForwardOf(const GroupNormSpec& s, const Values& x, const Values& gamma, const Values& beta) {
  Values y(x.size());
  for (int64_t group = 0; group < s.batch * s.groups; ++group) {
    const GroupMoments m = MomentsOf(s, group, x);
    ForGroup(s, group, [&](int64_t i, int64_t c) { y[i] = (x[i] - m.mean) / m.deviation * gamma[c] + beta[c]; });
  }
  return y;
}
Gradients BackwardOf(const GroupNormSpec& s, const Values& x, const Values& gamma, const Values&, const Values& dy) {
  Gradients g{Values(x.size()), Values(s.channels), Values(s.channels)};
  for (int64_t group = 0; group < s.batch * s.groups; ++group) {
    const GroupMoments m = MomentsOf(s, group, x);
    double sum = 0, product = 0;
    ForGroup(s, group, [&](int64_t i, int64_t c) {
      const double normalised = (x[i] - m.mean) / m.deviation;
      g.dweight[c] += dy[i] * normalised;
      g.dbias[c] += dy[i];
      sum += gamma[c] * dy[i] / m.count;
      product += gamma[c] * dy[i] * normalised / m.count;
    });
    ForGroup(s, group, [&](int64_t i, int64_t c) {
      g.dx[i] = (gamma[c] * dy[i] - sum - (x[i] - m.mean) / m.deviation * product) / m.deviation;
    });
  }
  return g;
}

Gradients BackwardOf(const Conv2dSpec& s, const Values& x, const Values& weight, const Values& y, const Values& dy) {
  return Conv2dBackward(s, x, weight, y, dy);
}
Gradients BackwardOf(const DenseSpec& s, const Values& x, const Values& weight, const Values& y, const Values& dy) {
  return DenseBackward(s, x, weight, y, dy);
}
Gradients BackwardOf(const Pool2dSpec& s, const Values& x, const Values&, const Values&, const Values& dy) {
  return {MaxPool2dBackward(s, x, dy), {}, {}};
}
Gradients BackwardOf(const GlobalAveragePoolSpec& s, const Values&, const Values&, const Values&, const Values& dy) {
  return {GlobalAveragePoolBackward(s, dy), {}, {}};
}

}  // namespace

Sizes SizesOf(const OperationSpec& spec) {
  return std::visit([](const auto& s) { return SizesOfSpec(s); }, spec);
}

Values Forward(const OperationSpec& spec, const Values& x, const Values& weight, const Values& bias) {
  return std::visit([&](const auto& s) { return ForwardOf(s, x, weight, bias); }, spec);
}

Gradients Backward(const OperationSpec& spec, const Values& x, const Values& weight, const Values& y,
                   const Values& dy) {
  return std::visit([&](const auto& s) { return BackwardOf(s, x, weight, y, dy); }, spec);
}

Moments BatchMoments(const BatchNormSpec& s, const Values& x) {
  Moments m{Values(s.channels), Values(s.channels)};
  const double rows = static_cast<double>(s.batch * s.height * s.width);
  for (size_t i = 0; i < x.size(); ++i) m.mean[i % s.channels] += x[i] / rows;
  for (size_t i = 0; i < x.size(); ++i) {
    const double distance = x[i] - m.mean[i % s.channels];
    m.variance[i % s.channels] += distance * distance / rows;
  }
  return m;
}

Values BatchNorm(const BatchNormSpec& s, const Values& x, const Values& gamma, const Values& beta,
                 const Moments& moments) {
  Values y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t c = i % s.channels;
    y[i] = (x[i] - moments.mean[c]) / std::sqrt(moments.variance[c] + double{s.epsilon}) * gamma[c] + beta[c];
  }
  Activate(s.activation, y);
  return y;
}

Values CrossEntropy(const LossSpec& s, const Values& logits, const std::vector<int32_t>& labels) {
  Values loss(s.batch);
  for (int64_t n = 0; n < s.batch; ++n) {
    const double* const row = logits.data() + n * s.outputs;
    const double maximum = *std::max_element(row, row + s.outputs);
    double sum = 0;
    for (int64_t c = 0; c < s.outputs; ++c) sum += std::exp(row[c] - maximum);
    // By definition, target by target; the devices add the targets' parts up first.
    const double smoothing = s.label_smoothing;
    for (int64_t c = 0; c < s.outputs; ++c) {
      const double target = smoothing / static_cast<double>(s.outputs) + (c == labels[n] ? 1 - smoothing : 0);
      if (target > 0) loss[n] += target * (std::log(sum) + maximum - row[c]);
    }
  }
  return loss;
}

double ValueLoss(const LossSpec& s, const Values& outputs, const std::vector<float>& targets) {
  double sum = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const double y = outputs[i], t = targets[i];
    // By definition: the outputs of the tests are small enough for it.
    const double sigmoid = 1 / (1 + std::exp(-y));
    sum += s.kind == LossKind::kMse ? (y - t) * (y - t) : -t * std::log(sigmoid) - (1 - t) * std::log(1 - sigmoid);
  }
  return sum / static_cast<double>(s.outputs);
}

double FiniteDifference(const std::function<double(const Values&)>& loss, Values at, int64_t index) {
  constexpr double kStep = 1e-5;
  const double value = at[index];
  at[index] = value + kStep;
  const double above = loss(at);
  at[index] = value - kStep;
  return (above - loss(at)) / (2 * kStep);
}

double Dot(const Values& a, const Values& b) {
  CHECK_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace starring::reference
