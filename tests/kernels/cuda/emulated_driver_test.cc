// The emulation's functions in the place of the driver's.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/gpu_libraries.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {
namespace {

TEST(EmulatedDriverTest, StreamsOfTheRuntimeWriteAndWait) {
  const absl::StatusOr<CudaDriverLibrary> driver = CudaDriverLibrary::Load();
  ASSERT_TRUE(driver.ok()) << driver.status();
  CUdevice device = -1;
  int has_64_bits = -1;
  ASSERT_EQ(driver->device_get(&device, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver->device_get_attribute(&has_64_bits, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device),
            CUDA_SUCCESS);
  EXPECT_EQ(has_64_bits, 1);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocHost(&memory, sizeof(uint64_t)), cudaSuccess);
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
                              .address = reinterpret_cast<CUdeviceptr>(memory),
                              .value64 = 5,
                              .flags = CU_STREAM_WRITE_VALUE_DEFAULT};
  operations[1].waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
                             .address = reinterpret_cast<CUdeviceptr>(memory),
                             .value64 = 5,
                             .flags = CU_STREAM_WAIT_VALUE_EQ};
  EXPECT_EQ(driver->stream_batch_mem_op(stream, 2, operations, 0), CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*static_cast<const uint64_t*>(memory), 5u);
  const char* text = nullptr;
  const CUresult refused = driver->stream_batch_mem_op(stream, 256, operations, 0);
  EXPECT_EQ(driver->get_error_name(refused, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "cudaErrorInvalidValue");
  EXPECT_EQ(driver->get_error_string(refused, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "invalid argument");
  EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(EmulatedDriverTest, AMachineWithoutADriverSaysSo) {
  cuda_emulation::Gpu() = {.driver_version = 0};
  const absl::StatusOr<CudaDriverLibrary> driver = CudaDriverLibrary::Load();
  cuda_emulation::Gpu() = {};
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(driver.status().message()), testing::StartsWith("the CUDA driver cannot be loaded: "));
}

}  // namespace
}  // namespace starring
