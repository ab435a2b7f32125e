#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

using reference::Values;

class LabelsOnDevice {
 public:
  LabelsOnDevice(Device* device, const std::vector<int32_t>& labels) {
    const int64_t size_bytes = static_cast<int64_t>(labels.size() * sizeof(int32_t));
    buffer_ = device->Allocate(size_bytes).value();
    device->CopyToDevice(labels.data(), buffer_->data(), size_bytes);
  }
  const int32_t* data() { return static_cast<const int32_t*>(buffer_->data()); }

 private:
  std::unique_ptr<DeviceBuffer> buffer_;
};

TEST_P(DeviceTest, SoftmaxCrossEntropyMatchesTheReferenceAndFiniteDifferences) {
  const std::vector<LossSpec> specs = {{.batch = 1, .outputs = 1},
                                       {.batch = 63, .outputs = 10},
                                       {.batch = 2, .outputs = 17},
                                       {.batch = 130, .outputs = 3},
                                       {.batch = 5, .outputs = 1000},
                                       {.batch = 1, .outputs = 1, .label_smoothing = 0.3f},
                                       {.batch = 63, .outputs = 10, .label_smoothing = 0.1f},
                                       {.batch = 2, .outputs = 40, .label_smoothing = 0.9f}};
  for (const LossSpec& spec : specs) {
    for (const float spread : {1.0f, 200.0f}) {
      SCOPED_TRACE(
          absl::StrCat(spec.batch, "x", spec.outputs, ", smoothing ", spec.label_smoothing, ", logits up to ", spread));
      std::vector<float> logits_host = Random(spec.batch * spec.outputs);
      for (float& v : logits_host) v *= spread;
      std::vector<int32_t> labels_host(spec.batch);
      for (int64_t n = 0; n < spec.batch; ++n) labels_host[n] = static_cast<int32_t>(n * 7 % spec.outputs);
      auto loss = device()->CreateLoss(spec);
      ASSERT_TRUE(loss.ok()) << loss.status();
      DeviceTensor logits(device(), logits_host), dlogits(device(), spec.batch * spec.outputs);
      LabelsOnDevice labels(device(), labels_host);
      (*loss)->Run(logits.data(), labels.data(), 0.5f, dlogits.data());
      const Values at = ToDouble(logits_host);
      const auto total = [&](const Values& v) {
        double sum = 0;
        for (const double l : reference::CrossEntropy(spec, v, labels_host)) sum += l;
        return sum;
      };
      const LossResult result = (*loss)->Result();
      EXPECT_NEAR(result.loss_sum, total(at), 1e-5 * std::max(1.0, total(at)));
      int64_t correct = 0;
      for (int64_t n = 0; n < spec.batch; ++n) {
        const float* const row = logits_host.data() + n * spec.outputs;
        correct += std::max_element(row, row + spec.outputs) - row == labels_host[n] ? 1 : 0;
      }
      EXPECT_EQ(result.correct, correct);
      const std::vector<float> gradient = dlogits.Host();
      for (const int64_t i : SampleOf(spec.batch * spec.outputs)) {
        EXPECT_NEAR(gradient[i], 0.5 * reference::FiniteDifference(total, at, i), 1e-5) << "dlogits[" << i << "]";
      }
      // In place, and without a gradient.
      (*loss)->Run(logits.data(), labels.data(), 0.5f, nullptr);
      EXPECT_EQ((*loss)->Result().loss_sum, result.loss_sum);
      (*loss)->Run(logits.data(), labels.data(), 0.5f, logits.data());
      EXPECT_EQ(logits.Host(), gradient);
      EXPECT_EQ((*loss)->Result().loss_sum, result.loss_sum);
    }
  }
}

TEST_P(DeviceTest, SoftmaxCrossEntropySurvivesLogitsThatOverflowAnExponential) {
  auto loss = device()->CreateLoss({.batch = 3, .outputs = 2});
  ASSERT_TRUE(loss.ok()) << loss.status();
  DeviceTensor logits(device(), {10000, 0, 0, 10000, -1e30f, -1e30f}), dlogits(device(), 6);
  LabelsOnDevice labels(device(), {0, 0, 1});
  (*loss)->Run(logits.data(), labels.data(), 1, dlogits.data());
  EXPECT_THAT(dlogits.Host(), testing::ElementsAre(0, 0, -1, 1, 0.5f, -0.5f));
  EXPECT_NEAR((*loss)->Result().loss_sum, 10000 + std::log(2.0), 1e-3);
  EXPECT_EQ((*loss)->Result().correct, 1) << "of equal maxima the first counts";
}

// With a factor of 0 they would make the loss NaN, as 0 * infinity is.
TEST_P(DeviceTest, LogitsOfMinusInfinityCountOnlyWithSmoothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float smoothing : {0.0f, 0.5f}) {
    auto loss = device()->CreateLoss({.batch = 1, .outputs = 3, .label_smoothing = smoothing});
    ASSERT_TRUE(loss.ok()) << loss.status();
    DeviceTensor logits(device(), {2, -infinity, 2}), dlogits(device(), 3);
    LabelsOnDevice labels(device(), {0});
    (*loss)->Run(logits.data(), labels.data(), 1, dlogits.data());
    if (smoothing == 0) {
      EXPECT_NEAR((*loss)->Result().loss_sum, std::log(2.0), 1e-6);
      EXPECT_THAT(dlogits.Host(), testing::ElementsAre(-0.5f, 0, 0.5f));
    } else {
      EXPECT_EQ((*loss)->Result().loss_sum, infinity);
      EXPECT_THAT(dlogits.Host(), testing::Pointwise(testing::FloatNear(1e-6f), {-1 / 6.0f, -1 / 6.0f, 1 / 3.0f}));
    }
  }
}

TEST_P(DeviceTest, LossesOfValuesMatchTheReferenceAndFiniteDifferences) {
  for (const LossKind kind : {LossKind::kMse, LossKind::kBce}) {
    for (const LossSpec& spec : std::vector<LossSpec>{{.kind = kind, .batch = 1, .outputs = 1},
                                                      {.kind = kind, .batch = 130, .outputs = 3},
                                                      {.kind = kind, .batch = 5, .outputs = 70}}) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(kind), ": ", spec.batch, "x", spec.outputs));
      std::vector<float> outputs_host = Random(spec.batch * spec.outputs), targets_host = outputs_host;
      for (size_t i = 0; i < targets_host.size(); ++i) {
        outputs_host[i] *= 4;
        targets_host[i] = kind == LossKind::kMse ? 3 * targets_host[i] - 1 : i % 3 == 0 ? 1.0f : 0.0f;
      }
      // The first sample is right, so that some are.
      for (int64_t k = 0; k < spec.outputs; ++k) outputs_host[k] = targets_host[k] > 0.5f ? 2.0f : -2.0f;
      auto loss = device()->CreateLoss(spec);
      ASSERT_TRUE(loss.ok()) << loss.status();
      DeviceTensor outputs(device(), outputs_host), targets(device(), targets_host);
      DeviceTensor gradients(device(), spec.batch * spec.outputs);
      (*loss)->Run(outputs.data(), targets.data(), 0.5f, gradients.data());
      const Values at = ToDouble(outputs_host);
      const auto total = [&](const Values& v) { return reference::ValueLoss(spec, v, targets_host); };
      const LossResult result = (*loss)->Result();
      EXPECT_NEAR(result.loss_sum, total(at), 1e-5 * std::max(1.0, total(at)));
      int64_t correct = 0;
      for (int64_t n = 0; n < spec.batch; ++n) {
        bool right = kind == LossKind::kBce;
        for (int64_t i = n * spec.outputs; i < (n + 1) * spec.outputs; ++i) {
          right = right && (outputs_host[i] > 0) == (targets_host[i] == 1);
        }
        correct += right ? 1 : 0;
      }
      EXPECT_EQ(result.correct, correct);
      const std::vector<float> gradient = gradients.Host();
      for (const int64_t i : SampleOf(spec.batch * spec.outputs)) {
        EXPECT_NEAR(gradient[i], 0.5 * reference::FiniteDifference(total, at, i), 1e-5) << "gradient[" << i << "]";
      }
      (*loss)->Run(outputs.data(), targets.data(), 0.5f, nullptr);
      EXPECT_EQ((*loss)->Result().loss_sum, result.loss_sum);
      (*loss)->Run(outputs.data(), targets.data(), 0.5f, outputs.data());
      EXPECT_EQ(outputs.Host(), gradient) << "in place";
    }
  }
}

TEST_P(DeviceTest, BinaryCrossEntropySurvivesOutputsThatOverflowAnExponential) {
  auto loss = device()->CreateLoss({.kind = LossKind::kBce, .batch = 4, .outputs = 1});
  ASSERT_TRUE(loss.ok()) << loss.status();
  DeviceTensor outputs(device(), {10000, 10000, -10000, -1e-30f}), targets(device(), {1, 0, 0, 0.5f});
  DeviceTensor gradients(device(), 4);
  (*loss)->Run(outputs.data(), targets.data(), 1, gradients.data());
  EXPECT_THAT(gradients.Host(), testing::ElementsAre(0, 1, 0, 0));
  EXPECT_NEAR((*loss)->Result().loss_sum, 10000 + std::log(2.0), 1e-3);
  // A target of 1/2 is on the side of 0.
  EXPECT_EQ((*loss)->Result().correct, 3);
}

TEST_P(DeviceTest, LossRefusesShapesThatMakeNoSense) {
  const absl::Status status = device()->CreateLoss({.batch = 1, .outputs = 0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("outputs is 0"));
}

TEST_P(DeviceTest, ElementwiseOperationsAreExactInPlaceToo) {
  for (const int64_t count : {0, 1, 15, 16, 17, 1000, 100'003}) {
    SCOPED_TRACE(count);
    const std::vector<float> a_host = Random(count), b_host = Random(count), c_host = Random(count);
    const auto expect = [&](DeviceTensor& got, auto value) {
      std::vector<float> want(count);
      for (int64_t i = 0; i < count; ++i) want[i] = value(a_host[i], b_host[i]);
      EXPECT_EQ(got.Host(), want);
    };
    DeviceTensor a(device(), a_host), b(device(), b_host), y(device(), count);
    device()->Relu(a.data(), y.data(), count);
    expect(y, [](float p, float) { return p > 0 ? p : 0; });
    device()->ReluBackward(a.data(), b.data(), y.data(), count);
    expect(y, [](float p, float q) { return p > 0 ? q : 0; });
    device()->Add(a.data(), b.data(), Activation::kNone, y.data(), count);
    expect(y, [](float p, float q) { return p + q; });
    device()->Add(a.data(), b.data(), Activation::kRelu, y.data(), count);
    expect(y, [](float p, float q) { return p + q > 0 ? p + q : 0; });
    std::vector<float> want(count);
    for (int64_t i = 0; i < count; ++i) want[i] = c_host[i] > 0 ? a_host[i] + b_host[i] : 0;
    DeviceTensor c(device(), c_host);
    device()->AddReluBackward(c.data(), a.data(), b.data(), y.data(), count);
    EXPECT_EQ(y.Host(), want);
    for (const bool first : {true, false}) {
      DeviceTensor x(device(), first ? a_host : b_host);
      device()->AddReluBackward(c.data(), first ? x.data() : a.data(), first ? b.data() : x.data(), x.data(), count);
      EXPECT_EQ(x.Host(), want) << "in place of " << (first ? "a" : "b");
    }
    device()->Add(a.data(), b.data(), Activation::kNone, b.data(), count);
    expect(b, [](float p, float q) { return q + p; });

    DeviceTensor in_place(device(), b_host);
    device()->ReluBackward(a.data(), in_place.data(), in_place.data(), count);
    expect(in_place, [](float p, float q) { return p > 0 ? q : 0; });
    DeviceTensor sum(device(), b_host);
    device()->Add(a.data(), sum.data(), Activation::kRelu, sum.data(), count);
    expect(sum, [](float p, float q) { return p + q > 0 ? p + q : 0; });
    device()->Relu(a.data(), a.data(), count);
    expect(a, [](float p, float) { return p > 0 ? p : 0; });
  }
}

TEST_P(DeviceTest, ReluLetsNanThrough) {
  DeviceTensor x(device(), std::vector<float>(33, std::numeric_limits<float>::quiet_NaN())), y(device(), 33);
  device()->Relu(x.data(), y.data(), 33);
  EXPECT_THAT(y.Host(), testing::Each(testing::IsNan()));
}

TEST_P(DeviceTest, AllocateGivesZeroedAlignedMemory) {
  for (const int64_t size_bytes : {0, 1, 100, 1 << 20}) {
    auto buffer = device()->Allocate(size_bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ((*buffer)->size_bytes(), size_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % 64, 0u);
    std::vector<char> host(size_bytes, 1);
    device()->CopyToHost((*buffer)->data(), host.data(), size_bytes);
    EXPECT_TRUE(device()->Synchronize().ok());
    EXPECT_THAT(host, testing::Each(0));
  }
}

TEST_P(DeviceTest, AllocateSaysHowMuchDidNotFit) {
  const absl::Status status = device()->Allocate(int64_t{1} << 60).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("1152921504606846976"));
}

}  // namespace
}  // namespace starring
