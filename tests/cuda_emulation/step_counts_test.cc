// Pins the launches of a training step of each shipped model, so that a new node or copy shows. A change that is wanted
// replaces the numbers here and in kernels/cuda/README.md (bazel run //bench:gpu_counts).
#include "tests/cuda_emulation/step_counts.h"

#include <ostream>
#include <string>

#include "gtest/gtest.h"

namespace starring::cuda_emulation {
namespace {

using Exchange = CountedStep::Exchange;

struct Pinned {
  const char* model;
  int64_t batch;
  Exchange exchange;
  int64_t kernels, library_calls, copies, events;
  CudaMath math = CudaMath::kFp32;
};
void PrintTo(const Pinned& p, std::ostream* out) { *out << p.model << " at " << p.batch; }

class StepCountsTest : public testing::TestWithParam<Pinned> {};

TEST_P(StepCountsTest, AStepLaunchesNoMoreThanItDid) {
  const Pinned& want = GetParam();
  const auto counts =
      CountStep({.model = want.model, .batch = want.batch, .exchange = want.exchange, .math = want.math});
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->kernels, want.kernels);
  EXPECT_EQ(counts->library_calls, want.library_calls);
  EXPECT_EQ(counts->copies, want.copies);
  EXPECT_EQ(counts->events, want.events);
  EXPECT_EQ(counts->memsets, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, StepCountsTest,
                         testing::Values(Pinned{"logreg", 64, Exchange::kLocal, 4, 2, 2, 0},
                                         Pinned{"mlp", 64, Exchange::kLocal, 6, 8, 2, 0},
                                         Pinned{"mlp", 64, Exchange::kHostStaged, 17, 8, 18, 8},
                                         Pinned{"lenet5", 64, Exchange::kLocal, 19, 9, 2, 0},
                                         Pinned{"lenet5", 512, Exchange::kLocal, 19, 9, 2, 0},
                                         Pinned{"mnist_cnn", 64, Exchange::kLocal, 20, 6, 2, 0},
                                         Pinned{"mnist_cnn", 512, Exchange::kLocal, 20, 6, 2, 0},
                                         Pinned{"resnet20", 64, Exchange::kLocal, 187, 18, 2, 0},
                                         Pinned{"resnet20", 512, Exchange::kLocal, 187, 18, 2, 0},
                                         // A cast of all parameters at once, or of each layer's where they come by
                                         // layers; one of each weight gradient of a convolution; one of the loss's
                                         // gradient.
                                         Pinned{"mlp", 64, Exchange::kLocal, 8, 8, 2, 0, CudaMath::kBf16},
                                         Pinned{"mlp", 64, Exchange::kHostStaged, 21, 8, 18, 8, CudaMath::kBf16},
                                         Pinned{"lenet5", 64, Exchange::kLocal, 16, 14, 2, 0, CudaMath::kBf16},
                                         Pinned{"resnet20", 64, Exchange::kLocal, 132, 65, 2, 0, CudaMath::kBf16}));

}  // namespace
}  // namespace starring::cuda_emulation
