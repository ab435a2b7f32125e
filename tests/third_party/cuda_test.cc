#include <cublasLt.h>
#include <cuda_runtime.h>

#include "gtest/gtest.h"

namespace {

// The static runtime starts without a driver, and reports that there is none.
TEST(Cuda, RuntimeAnswersWithoutADriver) {
  int version = 0;
  ASSERT_EQ(cudaRuntimeGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, CUDART_VERSION);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  EXPECT_TRUE(error == cudaSuccess || error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice)
      << cudaGetErrorString(error);
}

// cuBLASLt's header is enough for a build: kernels/cuda/gpu_libraries.h loads the library at run time.
TEST(Cuda, CublasLtHasAHeader) { EXPECT_GE(CUBLAS_VER_MAJOR, 12); }

}  // namespace
