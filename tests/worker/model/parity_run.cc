// One side of torch_parity_test.py: trains a shipped model for a few steps of SGD with momentum, and writes to a folder
// everything that PyTorch needs to do the same and to compare:
//
//   parity_run reference|cpu|bf16 MODEL HEIGHT WIDTH CHANNELS SEED FOLDER
//   FOLDER/initial/step-*      a checkpoint before the first step: the weights that PyTorch starts from
//   FOLDER/final/step-*        one after the last step
//   FOLDER/run.safetensors     images (steps, batch, channels, height, width), labels (steps, batch), losses (steps),
//                              evaluation (2): loss and correct answers of the last batch after the last step,
//                              gradient.NAME: of the first step, in PyTorch's order
// Dropout is off, because its masks are not PyTorch's. bf16: an emulated GPU that stores activations in bfloat16, for
// twenty steps.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/safetensors.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/worker/model/reference_device.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"

namespace starring {
namespace {

constexpr int64_t kBatch = 5;
constexpr int64_t kClasses = 10;
constexpr OptimizerConfig kOptimizer = {.momentum = 0.9f};
constexpr float kLearningRate = 0.02f;

LayerFile LoadWithoutDropout(const std::string& model) {
  const absl::StatusOr<LayerFile> shipped = LayerFile::Load(model);
  CHECK_OK(shipped);
  const std::string text = std::regex_replace(shipped->text(), std::regex("rate: [0-9.]+"), "rate: 0");
  absl::StatusOr<LayerFile> file = LayerFile::Parse(text, model);
  CHECK_OK(file);
  return *file;
}

class ParityRun {
 public:
  ParityRun(Device* device, const std::string& model, const NetworkOptions& options, uint32_t seed,
            const std::string& folder)
      : device_(device),
        options_(options),
        steps_(options.element == Element::kFloat32 ? 4 : 20),
        folder_(folder),
        random_(seed) {
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Create(LoadWithoutDropout(model), options, device);
    CHECK_OK(network);
    network_ = *std::move(network);
    parameters_ = AlignedFloats(network_->layout().element_count());
    gradients_ = AlignedFloats(network_->layout().element_count());
    momentum_.resize(network_->layout().element_count());
    network_->InitializeParameters(1, parameters_.span());
    // Batch norm begins as the identity. With other values an error would show.
    std::normal_distribution<float> normal;
    for (const Tensor& tensor : network_->layout().tensors()) {
      for (int64_t e = tensor.range.begin; e < tensor.range.end; ++e) parameters_.span()[e] += 0.03f * normal(random_);
    }
    batch_ = AlignedFloats(kBatch * image_elements());
    auto rounded = device->Allocate(batch_.size() * static_cast<int64_t>(sizeof(float)));
    CHECK_OK(rounded);
    rounded_ = *std::move(rounded);
    images_.resize(steps_ * kBatch * options.height * options.width * options.channels);
    for (float& value : images_) value = normal(random_);
    labels_.resize(steps_ * kBatch);
    for (int32_t& label : labels_) label = static_cast<int32_t>(random_() % kClasses);
  }

  void Run() {
    Save("initial", 0);
    for (int64_t step = 0; step < steps_; ++step) Train(step);
    Save("final", steps_);
    CHECK_OK(network_->Evaluate(Input(steps_ - 1), parameters_.span()));
    evaluation_ = {static_cast<float>(network_->Result().loss_sum / kBatch),
                   static_cast<float>(network_->Result().correct)};
    WriteRun();
  }

 private:
  int64_t image_elements() const { return options_.height * options_.width * options_.channels; }

  NetworkInput Input(int64_t step) {
    std::copy_n(images_.begin() + step * kBatch * image_elements(), batch_.size(), batch_.data());
    ConstElements images = batch_.data();
    if (options_.element != Element::kFloat32) {
      // The emulation's memory is the host's.
      const Elements rounded(options_.element, rounded_->data());
      device_->Cast(batch_.data(), rounded, kBatch * image_elements());
      images = rounded;
    }
    return {.images = images, .targets = labels_.data() + step * kBatch, .batch = kBatch};
  }

  void Train(int64_t step) {
    const Network::TrainStep train = {.input = Input(step),
                                      .step = step,
                                      .loss_scale = 1.0f / kBatch,
                                      .parameters = parameters_.span(),
                                      .gradients = gradients_.span()};
    const auto nothing = [](int) { return absl::OkStatus(); };
    CHECK_OK(network_->Forward(train, nothing));
    losses_.push_back(static_cast<float>(network_->Result().loss_sum / kBatch));
    CHECK_OK(network_->Backward(train, nothing));
    if (step == 0) first_gradients_.assign(gradients_.span().begin(), gradients_.span().end());
    const std::span<float> state[] = {momentum_};
    ApplyOptimizer(kOptimizer, {.learning_rate = kLearningRate,
                                .update = step + 1,
                                .gradient = gradients_.span(),
                                .parameters_in = parameters_.span(),
                                .parameters_out = parameters_.span(),
                                .state = state});
  }

  void Save(const std::string& name, int64_t step) {
    Checkpoint checkpoint = {.step = step,
                             .parameters = {parameters_.span().begin(), parameters_.span().end()},
                             .state_names = {"momentum_buffer"}};
    checkpoint.state = {momentum_};
    for (const NetworkBuffer& buffer : network_->buffers()) {
      checkpoint.buffers[buffer.name].assign(buffer.values.begin(), buffer.values.end());
    }
    CHECK_OK(WriteCheckpoint(absl::StrCat(folder_, "/", name), network_->layout(), checkpoint));
  }

  void WriteRun() const {
    std::map<std::string, TensorView> tensors;
    std::map<std::string, std::vector<float>> floats;  // the memory of the views
    const auto add = [&](const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
      floats[name] = std::move(values);
      tensors[name] = {.shape = std::move(shape), .bytes = std::as_bytes(std::span(floats[name]))};
    };
    add("images", {steps_, kBatch, options_.channels, options_.height, options_.width}, ImagesInTorchOrder());
    add("losses", {steps_}, losses_);
    add("evaluation", {2}, evaluation_);
    for (const Tensor& tensor : network_->layout().tensors()) {
      std::vector<float> gradient(tensor.range.size());
      ToTorchOrder(tensor.spec, std::span(first_gradients_).subspan(tensor.range.begin, tensor.range.size()), gradient);
      add("gradient." + tensor.spec.name, {tensor.range.size()}, std::move(gradient));
    }
    const std::vector<int64_t> labels(labels_.begin(), labels_.end());
    tensors["labels"] = {
        .type = TensorType::kInt64, .shape = {steps_, kBatch}, .bytes = std::as_bytes(std::span(labels))};
    std::ofstream(folder_ + "/run.safetensors", std::ios::binary) << SerializeSafetensors(tensors);
  }

  std::vector<float> ImagesInTorchOrder() const {
    std::vector<float> result;
    for (int64_t image = 0; image < steps_ * kBatch; ++image) {
      for (int64_t i = 0; i < image_elements(); ++i) {
        const int64_t area = options_.height * options_.width;
        const int64_t ours = i % area * options_.channels + i / area;
        result.push_back(images_[image * image_elements() + ours]);
      }
    }
    return result;
  }

  Device* const device_;
  const NetworkOptions options_;
  const int64_t steps_;
  const std::string folder_;
  std::mt19937 random_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<DeviceBuffer> rounded_;
  AlignedFloats parameters_, gradients_, batch_;
  std::vector<float> momentum_, first_gradients_, images_, losses_, evaluation_;
  std::vector<int32_t> labels_;
};

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  CHECK_EQ(argc, 8) << "reference|cpu|bf16 MODEL HEIGHT WIDTH CHANNELS SEED FOLDER";
  const std::string kind = argv[1];
  const bool is_bf16 = kind == "bf16";
  const starring::NetworkOptions options = {
      .height = std::atoi(argv[3]),
      .width = std::atoi(argv[4]),
      .channels = std::atoi(argv[5]),
      .outputs = 10,
      .batch_max = 5,
      .element = is_bf16 ? starring::Element::kBfloat16 : starring::Element::kFloat32};
  std::unique_ptr<starring::Device> device = std::make_unique<starring::ReferenceDevice>();
  if (is_bf16) {
    starring::cuda_emulation::Gpu() = {.cudnn_version = 91900};
    auto gpu = starring::CreateCudaDevice(
        {.math = starring::CudaMath::kBf16, .convolutions = starring::CudaConvolutions::kCudnn});
    CHECK_OK(gpu);
    device = *std::move(gpu);
  }
  if (kind == "cpu") {
    auto cpu = starring::CreateCpuDevice({.threads = 1});
    CHECK_OK(cpu);
    device = *std::move(cpu);
  }
  starring::ParityRun(device.get(), argv[2], options, static_cast<uint32_t>(std::atoi(argv[6])), argv[7]).Run();
  return 0;
}
