#include <cublasLt.h>
#include <cuda_runtime.h>

#include "gtest/gtest.h"

namespace {

// The static runtime starts without a driver, and says so.
TEST(Cuda, RuntimeAnswersWithoutADriver) {
  int version = 0;
  ASSERT_EQ(cudaRuntimeGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, CUDART_VERSION);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  EXPECT_TRUE(error == cudaSuccess || error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice)
      << cudaGetErrorString(error);
}

// Of cuBLASLt only the header is here: kernels/cuda/gpu_libraries.h loads the library.
TEST(Cuda, CublasLtHasAHeader) { EXPECT_GE(CUBLAS_VER_MAJOR, 12); }

}  // namespace
