// Matrices of so many rows that a block takes several steps down its tile and the last block has many tiles to merge
// (kernels/cuda/column_tiles.h), and convolutions whose weight gradient has more slices than one tile holds. Integers
// make sums exact in any order.
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "tests/kernels/cuda_device_suite.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

// An integer in [-2, 2].
std::vector<float> RandomIntegers(uint64_t seed, int64_t count) {
  std::vector<float> values = RandomFloats(seed, count);
  for (float& v : values) v = std::floor(2.5f * v + 0.5f);
  return values;
}

// Runs `work` directly and then twice as a graph, which must find the kernels' counters at 0 each time; calls `check`
// after each run.
void RunAndReplay(CudaDevice* device, const std::function<void()>& work, const std::function<void()>& check) {
  work();
  check();
  ASSERT_TRUE(device->BeginCapture().ok());
  work();
  auto graph = device->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int replay = 0; replay < 2; ++replay) {
    ASSERT_TRUE((*graph)->Launch().ok());
    check();
  }
}

// So many rows that with 17 to 32 channels a tile has two steps, and the last tile is not full.
constexpr int64_t kRows = 512 * 128 + 130;

// Batch norm of one (rows, channels) shape, with the expected results.
class BatchNormOfColumns {
 public:
  BatchNormOfColumns(CudaDevice* device, int64_t rows, int64_t channels)
      : rows_(rows),
        channels_(channels),
        x_host_(RandomFloats(1, rows * channels)),
        dy_host_(RandomIntegers(2, rows * channels)),
        norm_(device->CreateBatchNorm({.batch = rows, .height = 1, .width = 1, .channels = channels}).value()),
        x_(device, Shifted(&x_host_)),
        dy_(device, dy_host_),
        y_(device, rows * channels),
        dx_(device, rows * channels),
        ones_(device, std::vector<float>(static_cast<size_t>(4 * channels), 1.0f)),
        dgamma_(device, channels),
        dbeta_(device, channels) {
    const auto count = static_cast<size_t>(channels);
    mean_.resize(count);
    square_.resize(count);
    dbeta_want_.resize(count);
    product_.resize(count);
    for (size_t i = 0; i < x_host_.size(); ++i) mean_[i % count] += x_host_[i] / static_cast<double>(rows);
    for (size_t i = 0; i < x_host_.size(); ++i) {
      const double distance = x_host_[i] - mean_[i % count];
      square_[i % count] += distance * distance;
      dbeta_want_[i % count] += dy_host_[i];
      product_[i % count] += dy_host_[i] * distance;
    }
  }

  void Run() {
    float* const gamma = ones_.data();
    norm_->Forward(x_.data(), gamma, gamma + channels_, gamma + 2 * channels_, gamma + 3 * channels_, y_.data());
    norm_->Backward(x_.data(), gamma, y_.data(), dy_.data(), dx_.data(), dgamma_.data(), dbeta_.data());
  }

  void Check() {
    const std::vector<float> y = y_.Host(), dgamma = dgamma_.Host(), dbeta = dbeta_.Host();
    for (size_t c = 0; c < mean_.size(); ++c) {
      const double deviation = std::sqrt(square_[c] / static_cast<double>(rows_) + 1e-5);
      for (const int64_t row : {int64_t{0}, rows_ / 2, rows_ - 1}) {
        const size_t i = static_cast<size_t>(row * channels_) + c;
        ASSERT_NEAR(y[i], 1 + (x_host_[i] - mean_[c]) / deviation, 2e-5) << i;
      }
      EXPECT_EQ(dbeta[c], dbeta_want_[c]) << c;
      EXPECT_NEAR(dgamma[c], product_[c] / deviation, 1e-2) << c;
    }
  }

 private:
  // Away from zero, where squares of x itself would lose their digits.
  static const std::vector<float>& Shifted(std::vector<float>* values) {
    for (float& v : *values) v += 30;
    return *values;
  }

  const int64_t rows_, channels_;
  std::vector<float> x_host_;
  const std::vector<float> dy_host_;
  std::vector<double> mean_, square_, dbeta_want_, product_;
  const std::unique_ptr<BatchNorm> norm_;
  DeviceTensor x_, dy_, y_, dx_, ones_, dgamma_, dbeta_;  // ones_: gamma, beta and the running statistics
};

// With packs, and without.
TEST_P(CudaDeviceTest, BatchNormOfLongColumns) {
  for (const int64_t channels : {20, 17}) {
    SCOPED_TRACE(channels);
    BatchNormOfColumns test(device(), kRows, channels);
    test.Run();
    test.Check();
  }
}

TEST_P(CudaDeviceTest, BatchNormCanBeReplayed) {
  BatchNormOfColumns test(device(), 3000, 36);  // 24 tiles of two groups
  RunAndReplay(
      device(), [&] { test.Run(); }, [&] { test.Check(); });
}

void CheckBiasGradient(CudaDevice* device, int64_t channels, Activation activation) {
  SCOPED_TRACE(channels);
  auto dense = device
                   ->CreateOperation(DenseSpec{.batch = kRows,
                                               .in = 1,
                                               .out = channels,
                                               .activation = activation,
                                               .input_gradient = InputGradient::kNotNeeded})
                   .value();
  const std::vector<float> y_host = RandomIntegers(3, kRows * channels), dy_host = RandomIntegers(4, kRows * channels);
  std::vector<float> want(static_cast<size_t>(channels));
  for (size_t i = 0; i < dy_host.size(); ++i) {
    if (activation == Activation::kNone || y_host[i] > 0) want[i % want.size()] += dy_host[i];
  }
  DeviceTensor x(device, kRows), weight(device, channels), y(device, y_host), dy(device, dy_host);
  DeviceTensor dweight(device, channels), dbias(device, channels);
  dense->Backward(x.data(), weight.data(), y.data(), dy.data(), nullptr, dweight.data(), dbias.data());
  EXPECT_EQ(dbias.Host(), want);
}

TEST_P(CudaDeviceTest, BiasGradientsOfLongColumns) {
  CheckBiasGradient(device(), 20, Activation::kRelu);
  CheckBiasGradient(device(), 17, Activation::kRelu);
  CheckBiasGradient(device(), 20, Activation::kNone);
}

TEST_P(CudaDeviceTest, WeightGradientsOfManyThinSlices) {
  constexpr int64_t kImages = 44, kSize = 28, kOut = 6, kPatch = 9, kPixels = kSize * kSize;
  auto conv = device()->CreateOperation(Conv2dSpec{.batch = kImages,
                                                   .in_height = kSize,
                                                   .in_width = kSize,
                                                   .in_channels = 1,
                                                   .out_channels = kOut,
                                                   .kernel_height = 3,
                                                   .kernel_width = 3,
                                                   .padding_height = 1,
                                                   .padding_width = 1,
                                                   .bias = Bias::kNone,
                                                   .input_gradient = InputGradient::kNotNeeded});
  ASSERT_TRUE(conv.ok()) << conv.status();
  const std::vector<float> x_host = RandomIntegers(5, kImages * kPixels);
  const std::vector<float> dy_host = RandomIntegers(6, kImages * kPixels * kOut);
  std::vector<float> want(kOut * kPatch);
  for (int64_t place = 0; place < kImages * kPixels; ++place) {
    const int64_t row = place % kPixels / kSize, column = place % kSize;
    for (int64_t element = 0; element < kPatch; ++element) {
      const int64_t h = row + element / 3 - 1, w = column + element % 3 - 1;
      if (h < 0 || w < 0 || h >= kSize || w >= kSize) continue;
      const float x = x_host[static_cast<size_t>(place / kPixels * kPixels + h * kSize + w)];
      for (int64_t out = 0; out < kOut; ++out) {
        want[static_cast<size_t>(out * kPatch + element)] += x * dy_host[static_cast<size_t>(place * kOut + out)];
      }
    }
  }
  DeviceTensor x(device(), x_host), dy(device(), dy_host), y(device(), kImages * kPixels * kOut);
  DeviceTensor weight(device(), kOut * kPatch), dweight(device(), kOut * kPatch);
  RunAndReplay(
      device(),
      [&] { (*conv)->Backward(x.data(), weight.data(), y.data(), dy.data(), nullptr, dweight.data(), nullptr); },
      [&] { EXPECT_EQ(dweight.Host(), want); });
}

}  // namespace
}  // namespace starring
