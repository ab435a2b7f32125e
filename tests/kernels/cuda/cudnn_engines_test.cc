// The engines that the real cuDNN offers for an H200, on a machine without a GPU: since 9.8 cuDNN makes plans for a GPU
// that is described to it. Nothing is computed. Without cuDNN, every test says so and skips itself.
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host/library_search.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cudnn_product.h"

namespace starring {
namespace {

using cudnn::Attribute;
using cudnn::AttributeType;
using cudnn::Descriptor;
using cudnn::DescriptorType;
using cudnn::Status;

constexpr char kH200[] =
    R"({"deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0,
        "multiProcessorCount": 132, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560,
        "totalGlobalMem": 150000000000, "warpSize": 32, "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32,
        "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "isTccDriver": 0,
        "supportCoopLaunch": 1})";

// From cudnn_graph.h, 9.8 and later.
constexpr auto kDeviceProperties = static_cast<DescriptorType>(38);
constexpr auto kDevicePropertiesText = static_cast<Attribute>(2702);
constexpr auto kCharacters = static_cast<AttributeType>(24);
constexpr auto kHeuristicsDevice = static_cast<Attribute>(204), kPlanDevice = static_cast<Attribute>(407);
constexpr size_t kVersionMin = 90800;

// The real library, and the description of a GPU that replaces a handle.
CudnnLibrary real;
Descriptor gpu = nullptr;
std::map<Descriptor, DescriptorType>& Types() {
  static auto& types = *new std::map<Descriptor, DescriptorType>;
  return types;
}

Status CreateDescriptor(DescriptorType type, Descriptor* descriptor) {
  const Status status = real.create_descriptor(type, descriptor);
  Types()[*descriptor] = type;
  return status;
}

// Without a GPU there is no handle. Finalize sets the description in its place.
Status SetAttribute(Descriptor descriptor, Attribute attribute, AttributeType type, int64_t count, const void* data) {
  if (type == AttributeType::kHandle) return Status::kSuccess;
  return real.set_attribute(descriptor, attribute, type, count, data);
}

Status Finalize(Descriptor descriptor) {
  const DescriptorType type = Types()[descriptor];
  if (type == DescriptorType::kEngineHeuristics || type == DescriptorType::kExecutionPlan) {
    const Attribute device = type == DescriptorType::kExecutionPlan ? kPlanDevice : kHeuristicsDevice;
    const Status status = real.set_attribute(descriptor, device, AttributeType::kDescriptor, 1, &gpu);
    if (status != Status::kSuccess) return status;
  }
  return real.finalize(descriptor);
}

class CudnnEnginesTest : public testing::Test {
 protected:
  void SetUp() override {
    static const absl::Status* const loaded = new absl::Status(Open());
    if (absl::IsUnavailable(*loaded)) GTEST_SKIP() << *loaded;
    ASSERT_TRUE(loaded->ok()) << *loaded;
    context_.cudnn = real;
    context_.cudnn.create_descriptor = CreateDescriptor;
    context_.cudnn.set_attribute = SetAttribute;
    context_.cudnn.finalize = Finalize;
  }

  static absl::Status Open() {
    ASSIGN_OR_RETURN(real, CudnnLibrary::Load(GpuLibraryFolders(getenv)));
    if (real.get_version() < kVersionMin) {
      return absl::UnavailableError(absl::StrCat("cuDNN ", CudnnVersion(real), " plans for a GPU that is there only"));
    }
    RETURN_IF_ERROR(CudnnStatus(real, real.create_descriptor(kDeviceProperties, &gpu), "creating properties"));
    RETURN_IF_ERROR(CudnnStatus(
        real, real.set_attribute(gpu, kDevicePropertiesText, kCharacters, sizeof(kH200) - 1, kH200), "properties"));
    return CudnnStatus(real, real.finalize(gpu), "finalizing properties");
  }

  std::string EngineOf(const Conv2dSpec& spec, ConvolutionProduct product, CudaMath math) {
    context_.math = math;
    auto made = CudnnProduct::Create(&context_, spec, product, CudnnProduct::Epilogue::kOfTheSpec);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? (*made)->engine() : "";
  }

  CudaContext context_;
};

constexpr ConvolutionProduct kProducts[] = {ConvolutionProduct::kForward, ConvolutionProduct::kInputGradient,
                                            ConvolutionProduct::kWeightGradient};

Conv2dSpec Square(int64_t batch, int64_t side, int64_t in, int64_t out, int64_t kernel, int64_t stride,
                  int64_t padding) {
  return {.batch = batch,
          .in_height = side,
          .in_width = side,
          .in_channels = in,
          .out_channels = out,
          .kernel_height = kernel,
          .kernel_width = kernel,
          .stride_height = stride,
          .stride_width = stride,
          .padding_height = padding,
          .padding_width = padding,
          .activation = Activation::kRelu};
}

// Shapes of lenet5, mnist_cnn and resnet20: one and three input channels, stride 2, 1 x 1, a batch of one.
std::vector<Conv2dSpec> Shapes() {
  return {Square(64, 28, 1, 6, 5, 1, 2),    Square(64, 14, 6, 16, 5, 1, 0),  Square(512, 28, 1, 32, 3, 1, 0),
          Square(512, 26, 32, 64, 3, 1, 0), Square(512, 32, 3, 16, 3, 1, 1), Square(512, 32, 16, 16, 3, 1, 1),
          Square(64, 32, 16, 32, 3, 2, 1),  Square(64, 32, 16, 32, 1, 2, 0), Square(1, 8, 64, 64, 3, 1, 1),
          Square(256, 8, 64, 64, 3, 1, 1)};
}

TEST_F(CudnnEnginesTest, EveryProductOfTheShippedModelsHasOne) {
  int with_knobs = 0;
  for (const CudaMath math : {CudaMath::kFp32, CudaMath::kTf32, CudaMath::kBf16}) {
    const std::string name = math == CudaMath::kFp32 ? "fp32" : math == CudaMath::kTf32 ? "tf32" : "bf16";
    for (Conv2dSpec spec : Shapes()) {
      if (math == CudaMath::kBf16) spec.element = Element::kBfloat16;
      for (const ConvolutionProduct product : kProducts) {
        const std::string engine = EngineOf(spec, product, math);
        EXPECT_FALSE(engine.empty());
        with_knobs += engine.ends_with(")") ? 1 : 0;
        EXPECT_EQ(EngineOf(spec, product, math), engine);
        RecordProperty(absl::StrCat(name, "_", spec.batch, "x", spec.in_height, "x", spec.in_channels, "_to_",
                                    spec.out_channels, "_product_", static_cast<int>(product)),
                       engine);
      }
    }
  }
  EXPECT_GT(with_knobs, 0);
}

TEST_F(CudnnEnginesTest, Fp32TakesOtherEnginesThanTf32) {
  const Conv2dSpec spec = Square(512, 26, 32, 64, 3, 1, 0);
  for (const ConvolutionProduct product : kProducts) {
    EXPECT_NE(EngineOf(spec, product, CudaMath::kFp32), EngineOf(spec, product, CudaMath::kTf32));
    EXPECT_EQ(EngineOf(spec, product, CudaMath::kBf16), EngineOf(spec, product, CudaMath::kTf32));
  }
}

}  // namespace
}  // namespace starring
