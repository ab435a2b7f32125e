#include "kernels/cuda/gpu_libraries.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(GpuLibrariesTest, TheDriverIsLoadedOrTheLoaderSaysWhyNot) {
  const absl::StatusOr<CudaDriverLibrary> driver = CudaDriverLibrary::Load();
  if (driver.ok()) {
    EXPECT_NE(driver->device_get, nullptr);
    EXPECT_NE(driver->device_get_attribute, nullptr);
    EXPECT_NE(driver->get_error_name, nullptr);
    EXPECT_NE(driver->get_error_string, nullptr);
    EXPECT_NE(driver->stream_batch_mem_op, nullptr);
    return;
  }
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(driver.status().message()),
              testing::StartsWith("the CUDA driver cannot be loaded: libcuda.so.1: "));
}

}  // namespace
}  // namespace starring
