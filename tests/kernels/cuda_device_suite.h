// Tests of what a CudaDevice has that a Device has not, for the emulated GPU and for a real one.
//
//   INSTANTIATE_TEST_SUITE_P(Gpu, CudaDeviceTest, testing::Values(CudaMath::kFp32));
#ifndef STARRING_TESTS_KERNELS_CUDA_DEVICE_SUITE_H_
#define STARRING_TESTS_KERNELS_CUDA_DEVICE_SUITE_H_

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"

namespace starring {

class CudaDeviceTest : public testing::TestWithParam<CudaMath> {
 public:
  CudaDevice* device() { return device_.get(); }

 protected:
  void SetUp() override;

 private:
  std::unique_ptr<CudaDevice> device_;
};

// `count` numbers in [-1, 1), the same for the same seed.
std::vector<float> RandomFloats(uint64_t seed, int64_t count);

}  // namespace starring

#endif  // STARRING_TESTS_KERNELS_CUDA_DEVICE_SUITE_H_
