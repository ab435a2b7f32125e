// Every operation that stores bfloat16, beside itself in float32 on the emulated GPU. Inputs are the same numbers, and
// most operations compute in the same order: then what is stored is the float32 result, rounded once, to the bit.
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/cuda_emulation/include/stored.h"
#include "tests/kernels/reference.h"

namespace starring {
namespace {

using cuda_emulation::Gpu;
using cuda_emulation::Stored;
using Floats = std::vector<float>;

Floats RoundedOf(const Floats& values) {
  std::vector<uint16_t> bits(values.size());
  const Stored stored(bits.data(), std::ssize(values), true);
  for (size_t i = 0; i < values.size(); ++i) stored.Write(bits.data(), static_cast<int64_t>(i), values[i]);
  const Stored widened(bits.data(), std::ssize(values), true);
  return {widened.floats(), widened.floats() + values.size()};
}

class Bfloat16OperationsTest : public testing::Test {
 protected:
  void SetUp() override { Create({.cudnn_version = 91900}); }
  void TearDown() override {
    device_.reset();
    Gpu() = {};
  }
  void Create(const cuda_emulation::EmulatedGpu& gpu) {
    device_.reset();
    Gpu() = gpu;
    device_ = CreateCudaDevice({.math = CudaMath::kBf16, .convolutions = CudaConvolutions::kCudnn}).value();
  }

  // Numbers that bfloat16 has.
  Floats Random(int64_t count, float scale = 1) {
    Floats values(static_cast<size_t>(count));
    for (float& value : values) value = scale * std::uniform_real_distribution<float>(-1, 1)(random_);
    return RoundedOf(values);
  }

  // A tensor in device memory, which is the emulation's host memory.
  class DeviceValues {
   public:
    DeviceValues(Bfloat16OperationsTest* test, Element element, const Floats& values)
        : element_(element), count_(std::ssize(values)) {
      buffer_ = test->device_->Allocate(count_ * BytesOf(element) + 64).value();
      const Stored stored(buffer_->data(), 0, element == Element::kBfloat16);
      for (int64_t i = 0; i < count_; ++i) stored.Write(buffer_->data(), i, values[static_cast<size_t>(i)]);
    }
    Elements get() const { return count_ == 0 ? Elements() : Elements(element_, buffer_->data()); }
    Floats values() const {
      const Stored stored(buffer_->data(), count_, element_ == Element::kBfloat16);
      return {stored.floats(), stored.floats() + count_};
    }

   private:
    const Element element_;
    const int64_t count_;
    std::unique_ptr<DeviceBuffer> buffer_;
  };

  struct Numbers {
    Floats x, weight, bias, dy;
  };
  struct Results {
    Floats y, dx, dweight, dbias;
  };
  // `y`: what backward reads; empty: what forward has stored.
  Results Run(OperationSpec spec, Element element, const Numbers& in, const Floats& y_for_backward = {}) {
    std::visit([&](auto& s) { s.element = element; }, spec);
    Element output = element, weights = Element::kFloat32;
    if (auto* const dense = std::get_if<DenseSpec>(&spec)) {
      output = dense->output = dense->output == Element::kFloat32 ? Element::kFloat32 : element;
    }
    if (std::holds_alternative<DenseSpec>(spec) || std::holds_alternative<Conv2dSpec>(spec)) weights = element;
    const Element biases = weights == Element::kFloat32 ? weights : output;
    auto operation = device_->CreateOperation(spec);
    EXPECT_TRUE(operation.ok()) << operation.status();
    if (!operation.ok()) return {};
    const Floats nothing_x(in.x.size(), NAN), nothing_y(in.dy.size(), NAN);
    DeviceValues x(this, element, in.x), weight(this, weights, in.weight), bias(this, biases, in.bias);
    DeviceValues y(this, output, nothing_y), dy(this, output, in.dy), dx(this, element, nothing_x);
    DeviceValues dweight(this, Element::kFloat32, Floats(in.weight.size(), NAN));
    DeviceValues dbias(this, Element::kFloat32, Floats(in.bias.size(), NAN));
    (*operation)->Forward(x.get(), weight.get(), bias.get(), y.get());
    const DeviceValues read(this, output, y_for_backward);
    (*operation)
        ->Backward(x.get(), weight.get(), y_for_backward.empty() ? y.get() : read.get(), dy.get(), dx.get(),
                   dweight.get().floats(), dbias.get().floats());
    EXPECT_TRUE(device_->Synchronize().ok());
    return {y.values(), dx.values(), dweight.values(), dbias.values()};
  }

  void ExpectRounded(const Floats& got, const Floats& exact, const char* what) {
    ASSERT_EQ(got.size(), exact.size());
    const Floats rounded = RoundedOf(exact);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], rounded[i]) << what << "[" << i << "], unrounded " << exact[i];
    }
  }
  void ExpectNear(const Floats& got, const Floats& exact, double tolerance, const char* what) {
    ASSERT_EQ(got.size(), exact.size());
    double largest = 1;
    for (const float value : exact) largest = std::fmax(largest, std::fabs(value));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], exact[i], tolerance * largest) << what << "[" << i << "]";
    }
  }

  void Check(const std::string& name, const OperationSpec& spec) {
    SCOPED_TRACE(name);
    const reference::Sizes sizes = reference::SizesOf(spec);
    const Numbers in = {Random(sizes.x, 4), Random(sizes.weight), Random(sizes.bias), Random(sizes.y)};
    const Results got = Run(spec, Element::kBfloat16, in);
    const Results exact = Run(spec, Element::kFloat32, in, got.y);
    ExpectRounded(got.y, exact.y, "y");
    ExpectRounded(got.dx, exact.dx, "dx");
    // cuDNN alone rounds a gradient of parameters.
    if (std::holds_alternative<Conv2dSpec>(spec)) {
      ExpectRounded(got.dweight, exact.dweight, "dweight");
    } else {
      EXPECT_EQ(got.dweight, exact.dweight);
    }
    EXPECT_EQ(got.dbias, exact.dbias);
  }

  std::mt19937 random_{20261129};
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(Bfloat16OperationsTest, OperationsStoreTheFloat32ResultRoundedOnce) {
  // Channels in packs of eight, in packs of four alone, and in neither.
  for (const int64_t channels : {16, 12, 5}) {
    const Pool2dSpec window = {.batch = 3,
                               .in_height = 6,
                               .in_width = 7,
                               .channels = channels,
                               .kernel_height = 3,
                               .kernel_width = 2,
                               .padding_height = 1};
    const std::string of = absl::StrCat(" of ", channels);
    Check("max pool" + of, window);
    Check("average pool" + of, AveragePool2dSpec{window});
    Check("depthwise" + of, DepthwiseConv2dSpec{window});
    Check("mean" + of, GlobalAveragePoolSpec{.batch = 3, .height = 5, .width = 4, .channels = channels});
    Check("group norm" + of, GroupNormSpec{.batch = 3, .pixels = 9, .channels = channels});
    for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
      Check("conv2d" + of, Conv2dSpec{.batch = 3,
                                      .in_height = 5,
                                      .in_width = 6,
                                      .in_channels = channels,
                                      .out_channels = 8,
                                      .kernel_height = 3,
                                      .kernel_width = 3,
                                      .padding_height = 1,
                                      .activation = activation});
      Check("dense" + of,
            DenseSpec{.batch = 9, .in = 31, .out = channels, .activation = activation, .output = Element::kBfloat16});
    }
  }
  for (const ActivationFunction function :
       {ActivationFunction::kRelu6, ActivationFunction::kSigmoid, ActivationFunction::kTanh, ActivationFunction::kGelu,
        ActivationFunction::kSilu, ActivationFunction::kLeakyRelu}) {
    Check(absl::StrCat("activation ", static_cast<int>(function)),
          ActivationSpec{.batch = 3, .sample_elements = 133, .function = function, .parameter = 0.2f});
  }
}

// A bias and a ReLU that cuDNN and cuBLASLt leave to us: the product is stored, and so rounded, in between.
TEST_F(Bfloat16OperationsTest, OurOwnBiasRoundsOnceMore) {
  Create({.has_epilogues = false, .cudnn_version = 91900, .cudnn_fuses = false});
  const OperationSpec specs[] = {Conv2dSpec{.batch = 2,
                                            .in_height = 4,
                                            .in_width = 4,
                                            .in_channels = 3,
                                            .out_channels = 8,
                                            .kernel_height = 3,
                                            .kernel_width = 3,
                                            .activation = Activation::kRelu},
                                 DenseSpec{.batch = 5, .in = 7, .out = 24, .output = Element::kBfloat16}};
  for (const OperationSpec& spec : specs) {
    const reference::Sizes sizes = reference::SizesOf(spec);
    const Numbers in = {Random(sizes.x), Random(sizes.weight), Random(sizes.bias), Random(sizes.y)};
    const Results got = Run(spec, Element::kBfloat16, in);
    OperationSpec product = spec;
    bool has_relu = false;
    std::visit(
        [&](auto& s) {
          if constexpr (requires { s.activation; }) {
            has_relu = std::exchange(s.activation, Activation::kNone) == Activation::kRelu;
            s.bias = Bias::kNone;
          }
        },
        product);
    Numbers without_bias = in;
    without_bias.bias.clear();
    Floats want = RoundedOf(Run(product, Element::kFloat32, without_bias).y);
    for (size_t i = 0; i < want.size(); ++i) {
      want[i] += in.bias[i % in.bias.size()];
      if (has_relu && want[i] < 0) want[i] = 0;
    }
    EXPECT_EQ(got.y, RoundedOf(want));
  }
}

// The last layer: the loss reads and writes float32, and the products read a rounded gradient.
TEST_F(Bfloat16OperationsTest, ADenseLayerWritesFloat32ForTheLoss) {
  const DenseSpec spec = {.batch = 9, .in = 31, .out = 10};
  const reference::Sizes sizes = reference::SizesOf(spec);
  Numbers in = {Random(sizes.x), Random(sizes.weight), Random(sizes.bias), Random(sizes.y)};
  for (float* const values : {in.bias.data(), in.dy.data()}) values[0] = 0.1f;  // not a number of bfloat16
  const Results got = Run(spec, Element::kBfloat16, in), exact = Run(spec, Element::kFloat32, in);
  EXPECT_EQ(got.y, exact.y);
  EXPECT_EQ(got.dbias, exact.dbias);
  in.dy = RoundedOf(in.dy);
  const Results rounded = Run(spec, Element::kFloat32, in);
  EXPECT_EQ(got.dweight, rounded.dweight);
  EXPECT_NE(got.dweight, exact.dweight);
  ExpectRounded(got.dx, rounded.dx, "dx");
}

TEST_F(Bfloat16OperationsTest, ConcatCopies) {
  for (const int64_t channels : {8, 3}) {
    const ConcatPartSpec spec = {.batch = 2,
                                 .pixels = 5,
                                 .channels = channels,
                                 .out_channels = 4 * channels,
                                 .offset = channels,
                                 .element = Element::kBfloat16};
    auto operation = device_->CreateOperation(spec).value();
    const Floats in = Random(10 * channels), wide(static_cast<size_t>(40 * channels), 7.0f);
    DeviceValues x(this, spec.element, in), y(this, spec.element, wide), dx(this, spec.element, in);
    operation->Forward(x.get(), {}, {}, y.get());
    operation->Backward({}, {}, {}, y.get(), dx.get(), nullptr, nullptr);
    EXPECT_EQ(dx.values(), in);
    EXPECT_EQ(y.values()[0], 7.0f);
    EXPECT_EQ(y.values()[static_cast<size_t>(channels)], in[0]);
  }
}

// Statistics, their sums and running ones are float32, and the same as of the widened activations.
TEST_F(Bfloat16OperationsTest, BatchNorm) {
  for (const int64_t channels : {16, 12, 5}) {
    for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
      SCOPED_TRACE(channels);
      const int64_t count = 4 * 9 * channels;
      const Floats x_values = Random(count, 3), dy_values = Random(count);
      const Floats gamma = Random(channels), beta = Random(channels);
      Floats results[2][7];  // y, dx, inference; running mean and variance, dgamma, dbeta
      for (const Element element : {Element::kBfloat16, Element::kFloat32}) {
        auto norm = device_
                        ->CreateBatchNorm({.batch = 4,
                                           .height = 3,
                                           .width = 3,
                                           .channels = channels,
                                           .activation = activation,
                                           .element = element})
                        .value();
        DeviceValues x(this, element, x_values), y(this, element, x_values), dy(this, element, dy_values);
        DeviceValues dx(this, element, x_values), inferred(this, element, x_values);
        const auto floats = [&](const Floats& values) { return DeviceValues(this, Element::kFloat32, values); };
        const DeviceValues g = floats(gamma), b = floats(beta), mean = floats(Floats(beta.size(), 0.0f));
        const DeviceValues variance = floats(Floats(beta.size(), 1.0f)), dgamma = floats(gamma), dbeta = floats(beta);
        norm->Forward(x.get(), g.get().floats(), b.get().floats(), mean.get().floats(), variance.get().floats(),
                      y.get());
        norm->Backward(x.get(), g.get().floats(), y.get(), dy.get(), dx.get(), dgamma.get().floats(),
                       dbeta.get().floats());
        norm->Infer(x.get(), g.get().floats(), b.get().floats(), mean.get().floats(), variance.get().floats(),
                    inferred.get());
        ASSERT_TRUE(device_->Synchronize().ok());
        Floats* const r = results[element == Element::kFloat32];
        r[0] = y.values(), r[1] = dx.values(), r[2] = inferred.values(), r[3] = mean.values();
        r[4] = variance.values(), r[5] = dgamma.values(), r[6] = dbeta.values();
      }
      for (int r = 0; r < 3; ++r) ExpectRounded(results[0][r], results[1][r], "activations");
      for (int r = 3; r < 7; ++r) EXPECT_EQ(results[0][r], results[1][r]) << r;
    }
  }
}

TEST_F(Bfloat16OperationsTest, ElementByElement) {
  for (const int64_t count : {1, 8, 77}) {
    const Floats a_values = Random(count), b_values = Random(count), y_values = Random(count);
    Floats results[2][6];
    for (const Element element : {Element::kBfloat16, Element::kFloat32}) {
      const DeviceValues a(this, element, a_values), b(this, element, b_values), y(this, element, y_values);
      Floats* r = results[element == Element::kFloat32];
      const auto run = [&](const auto& call) {
        const DeviceValues out(this, element, y_values);
        call(out.get());
        *r++ = out.values();
      };
      run([&](Elements out) { device_->Relu(a.get(), out, count); });
      run([&](Elements out) { device_->ReluBackward(y.get(), a.get(), out, count); });
      run([&](Elements out) { device_->Add(a.get(), b.get(), Activation::kNone, out, count); });
      run([&](Elements out) { device_->Add(a.get(), b.get(), Activation::kRelu, out, count); });
      run([&](Elements out) { device_->AddReluBackward(y.get(), a.get(), b.get(), out, count); });
      auto dropout = device_->CreateDropout({.batch = 1, .sample_elements = count, .rate = 0.3f, .element = element});
      run([&](Elements out) { (*dropout)->Forward(a.get(), 5, 3, out); });
    }
    for (int i = 0; i < 6; ++i) ExpectRounded(results[0][i], results[1][i], absl::StrCat("call ", i).c_str());
  }
}

TEST_F(Bfloat16OperationsTest, NormalizedValuesAreRounded) {
  Floats results[2];
  const Floats offset = {0.1f, 0.2f, 0.3f}, scale = {3.3f, 4.7f, 0.9f};
  const DeviceValues offsets(this, Element::kFloat32, offset), scales(this, Element::kFloat32, scale);
  const Floats pixels = Random(60);
  const DeviceValues values(this, Element::kFloat32, pixels);
  for (const Element element : {Element::kBfloat16, Element::kFloat32}) {
    const DeviceValues out(this, element, pixels);
    device_->NormalizeValues({.values = values.get().data(),
                              .value_bytes = 4,
                              .count = 60,
                              .channels = 3,
                              .offset = offsets.get().floats(),
                              .scale = scales.get().floats(),
                              .out = out.get()});
    results[element == Element::kFloat32] = out.values();
  }
  ExpectRounded(results[0], results[1], "values");
}

TEST_F(Bfloat16OperationsTest, TensorsOfTwoKindsAreAnError) {
  const DeviceValues narrow(this, Element::kBfloat16, Random(8)), wide(this, Element::kFloat32, Random(8));
  device_->Relu(narrow.get(), wide.get(), 8);
  EXPECT_EQ(device_->Synchronize().code(), absl::StatusCode::kInternal);
}

TEST_F(Bfloat16OperationsTest, AConvolutionWithoutAnEngineIsRefused) {
  Create({.cudnn_version = 91900, .cudnn_channels_refused = 3});
  const Conv2dSpec spec = {
      .batch = 1, .in_height = 4, .in_width = 4, .in_channels = 3, .out_channels = 8, .element = Element::kBfloat16};
  const absl::Status status = device_->CreateOperation(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("cuDNN has no engine for this shape in bfloat16, and our own kernels have none: give "
                                 "--math=tf32"));
}

}  // namespace
}  // namespace starring
