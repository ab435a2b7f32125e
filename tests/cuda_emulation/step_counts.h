// What one training step of a shipped model gives the GPU to do, counted on the emulated one: the worker's own step
// over synthetic images, with momentum and graphs. Links with one of the emulated devices.
#ifndef STARRING_TESTS_CUDA_EMULATION_STEP_COUNTS_H_
#define STARRING_TESTS_CUDA_EMULATION_STEP_COUNTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tests/cuda_emulation/counters.h"

namespace starring::cuda_emulation {

struct CountedStep {
  // kLocal: one worker, whose optimizer runs on the GPU. kHostStaged: gradients leave for the host, parameters come
  // back, as in a star or a ring.
  enum class Exchange { kLocal, kHostStaged };

  std::string model;  // a shipped one
  int64_t batch = 0;
  Exchange exchange = Exchange::kLocal;
  bool counts_bytes = false;  // runs every kernel of the step, products but not; else nothing is run
};

// Of a step after those in which graphs are captured.
absl::StatusOr<WorkCounts> CountStep(const CountedStep& step);

}  // namespace starring::cuda_emulation

#endif  // STARRING_TESTS_CUDA_EMULATION_STEP_COUNTS_H_
