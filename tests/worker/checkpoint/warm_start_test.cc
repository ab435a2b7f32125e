#include "worker/checkpoint/warm_start.h"

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/checkpoint/safetensors.h"
#include "common/job/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/model/layer_file.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLayers[] = R"(
layer { name: "conv" conv2d { out_channels: 2 kernel: 2 } }
layer { name: "norm" batch_norm {} }
layer { name: "last" dense { activation: "sigmoid" } }
)";

class WarmStartTest : public ::testing::Test {
 protected:
  WarmStartTest() {
    device_ = CreateCpuDevice({}).value();
    network_ = Network::Create(LayerFile::Parse(kLayers, "n.textproto").value(),
                               {.height = 3, .width = 3, .channels = 3, .outputs = 4, .batch_max = 1}, device_.get())
                   .value();
    for (const Tensor& tensor : network_->layout().tensors()) Add(tensor.spec.name, TorchShape(tensor.spec));
    for (const NetworkBuffer& buffer : network_->buffers()) {
      Add(buffer.name, {static_cast<int64_t>(buffer.values.size())});
    }
    Add("norm.num_batches_tracked", {});
  }

  // A tensor of numbers that are all different.
  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::vector<float>& values = values_[name];
    values.resize(static_cast<size_t>(count));
    for (float& value : values) value = next_++;
    tensors_[name] = {.type = TensorType::kFloat32, .shape = shape, .bytes = std::as_bytes(std::span(values))};
  }

  std::string Write(const std::string& content) {
    const std::string path = ::testing::TempDir() + "/warm.safetensors";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  absl::StatusOr<std::vector<std::string>> Apply() {
    const auto warm = WarmStart::Load(Write(SerializeSafetensors(tensors_)));
    CHECK_OK(warm);
    parameters_.assign(static_cast<size_t>(network_->layout().element_count()), -1);
    return warm->Apply(network_.get(), parameters_);
  }
  std::vector<float> InTorchOrder(const Tensor& tensor) const {
    std::vector<float> values(static_cast<size_t>(tensor.range.size()));
    ToTorchOrder(tensor.spec, std::span(parameters_).subspan(tensor.range.begin, tensor.range.size()), values);
    return values;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Network> network_;
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, TensorView> tensors_;
  std::vector<float> parameters_;
  float next_ = 1;
};

TEST_F(WarmStartTest, TakesEveryTensorByName) {
  const auto lines = Apply();
  ASSERT_TRUE(lines.ok()) << lines.status();
  EXPECT_THAT(*lines, ElementsAre(HasSubstr("starting with the weights of ")));
  for (const Tensor& tensor : network_->layout().tensors()) {
    EXPECT_EQ(InTorchOrder(tensor), values_[tensor.spec.name]) << tensor.spec.name;
  }
  for (const NetworkBuffer& buffer : network_->buffers()) {
    std::vector<float> values(buffer.values.size());
    ASSERT_TRUE(network_->ReadBuffer(buffer, values).ok());
    EXPECT_EQ(values, values_[buffer.name]);
  }
}

TEST_F(WarmStartTest, TheLastLayerMayHaveOtherOutputs) {
  Add("last.weight", {7, 8});
  const auto lines = Apply();
  ASSERT_TRUE(lines.ok()) << lines.status();
  EXPECT_THAT(*lines,
              ElementsAre(HasSubstr("starting with"),
                          HasSubstr("the last layer keeps its own first values: last.weight has the shape (4, 8), "
                                    "the file's (7, 8)")));
  for (const Tensor& tensor : network_->layout().tensors()) {
    // Its bias would fit.
    if (tensor.spec.name.starts_with("last.")) {
      EXPECT_THAT(InTorchOrder(tensor), Each(-1));
    } else {
      EXPECT_EQ(InTorchOrder(tensor), values_[tensor.spec.name]);
    }
  }
}

TEST_F(WarmStartTest, ListsWhatDoesNotFit) {
  tensors_.erase("conv.bias");
  tensors_.erase("norm.running_var");
  Add("conv.weight", {2, 3, 2, 3});
  Add("more.weight", {1});
  const auto lines = Apply();
  EXPECT_EQ(lines.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(lines.status().message(),
              AllOf(HasSubstr("warm.safetensors does not fit the model: "), HasSubstr("conv.bias is missing"),
                    HasSubstr("norm.running_var is missing"),
                    HasSubstr("conv.weight has the shape (2, 3, 2, 3), expected (2, 3, 2, 2)"),
                    HasSubstr("more.weight is no tensor of the model")));
  // Nothing is taken then.
  EXPECT_THAT(parameters_, Each(-1));
}

TEST_F(WarmStartTest, ListsTenOfMany) {
  for (int i = 0; i < 12; ++i) Add("more" + std::to_string(i), {1});
  EXPECT_THAT(Apply().status().message(), HasSubstr("; and 2 more: give weights of the same layer file"));
}

TEST_F(WarmStartTest, RefusesOtherFiles) {
  const auto refusal = [&](const std::string& content) {
    return std::string(WarmStart::Load(Write(content)).status().message());
  };
  EXPECT_THAT(refusal("PK\3\4, and more of a zip"), HasSubstr("python3 -m starring.weights"));
  EXPECT_THAT(refusal("nothing"), HasSubstr("warm.safetensors"));
  EXPECT_THAT(refusal(SerializeSafetensors(tensors_).substr(0, 300)), HasSubstr("warm.safetensors"));
  EXPECT_EQ(WarmStart::Load("/nowhere").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(WarmStartTest, TheRanksCompareContents) {
  const std::string file = SerializeSafetensors(tensors_);
  const Facts facts = WarmStart::Load(Write(file))->facts();
  EXPECT_EQ(WarmStart::Load(Write(file))->facts(), facts);
  Add("conv.bias", {2});
  EXPECT_NE(WarmStart::Load(Write(SerializeSafetensors(tensors_)))->facts(), facts);
}

}  // namespace
}  // namespace starring
