// Counts the work of one training step of a shipped model on the emulated GPU: the worker's own step over synthetic
// images, with momentum and graphs. Links with one of the emulated devices.
#ifndef STARRING_TESTS_CUDA_EMULATION_STEP_COUNTS_H_
#define STARRING_TESTS_CUDA_EMULATION_STEP_COUNTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda_emulation/counters.h"

namespace starring::cuda_emulation {

struct CountedStep {
  // kLocal: one worker, whose optimizer runs on the GPU. kHostStaged: gradients are copied to the host and parameters
  // back, as in a star or a ring.
  enum class Exchange { kLocal, kHostStaged };

  std::string model;  // a shipped model
  int64_t batch = 0;
  Exchange exchange = Exchange::kLocal;
  // With kFp32 convolutions are our own, as with --conv=auto; else cuDNN's, whose engines the emulation counts as one
  // library call each, which reads each tensor once.
  CudaMath math = CudaMath::kFp32;
  bool counts_bytes = false;  // runs every kernel of the step, but no products; if false, nothing is run
};

// The counts of a step after the steps in which graphs are captured.
absl::StatusOr<WorkCounts> CountStep(const CountedStep& step);

}  // namespace starring::cuda_emulation

#endif  // STARRING_TESTS_CUDA_EMULATION_STEP_COUNTS_H_
