// Counts the work of one training step of the shipped models on the emulated GPU (no GPU is needed): kernels, copies,
// and bytes that kernels read and write. kernels/cuda/README.md has the table and says how bytes are counted.
//
//   bazel run //bench:gpu_counts -- [--bytes] [--host_staged] [--math=tf32|bf16] [MODEL BATCH]...
//                                                                                 default: every model, 64 and 512
//
// --bytes runs every kernel of one step: seconds for lenet5 at batch 64, ten minutes for resnet20 at 512.
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "tests/cuda_emulation/step_counts.h"

namespace starring {
namespace {

using cuda_emulation::CountedStep;
using cuda_emulation::WorkCounts;

int Usage() {
  std::fprintf(stderr, "usage: gpu_counts [--bytes] [--host_staged] [--math=tf32|bf16] [MODEL BATCH]...\n");
  return 2;
}

double Megabytes(int64_t bytes) { return static_cast<double>(bytes) * 1e-6; }

int Main(int argc, char** argv) {
  CountedStep options;
  std::vector<CountedStep> steps;
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--bytes") {
      options.counts_bytes = true;
    } else if (flag == "--host_staged") {
      options.exchange = CountedStep::Exchange::kHostStaged;
    } else if (flag == "--math=tf32" || flag == "--math=bf16") {
      options.math = flag == "--math=tf32" ? CudaMath::kTf32 : CudaMath::kBf16;
    } else {
      return Usage();
    }
  }
  for (; i + 1 < argc; i += 2) {
    CountedStep step = options;
    step.model = argv[i];
    if (!absl::SimpleAtoi(argv[i + 1], &step.batch) || step.batch < 1) return Usage();
    steps.push_back(step);
  }
  // An argument that is left over is a model without a batch.
  if (i < argc) return Usage();
  if (steps.empty()) {
    for (const char* const model : {"logreg", "mlp", "lenet5", "mnist_cnn", "resnet20"}) {
      for (const int64_t batch : {64, 512}) {
        CountedStep step = options;
        step.model = model;
        step.batch = batch;
        steps.push_back(step);
      }
    }
  }
  std::printf(
      "model      batch  kernels   library  copies  memsets  events  nodes  copied MB    read MB  written MB\n");
  for (const CountedStep& step : steps) {
    const absl::StatusOr<WorkCounts> counts = CountStep(step);
    if (!counts.ok()) {
      std::fprintf(stderr, "gpu_counts: %s at %lld: %s\n", step.model.c_str(), static_cast<long long>(step.batch),
                   counts.status().ToString().c_str());
      return 1;
    }
    const auto number = [](int64_t value) { return static_cast<long long>(value); };
    std::printf("%-9s %6lld %8lld %9lld %7lld %8lld %7lld %6lld %10.2f", step.model.c_str(), number(step.batch),
                number(counts->kernels), number(counts->library_calls), number(counts->copies), number(counts->memsets),
                number(counts->events), number(counts->nodes()), Megabytes(counts->copied_bytes));
    if (step.counts_bytes) {
      std::printf(" %10.1f %11.1f", Megabytes(counts->read_bytes), Megabytes(counts->written_bytes));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) { return starring::Main(argc, argv); }
