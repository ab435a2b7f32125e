#include "kernels/cuda/cuda_vector_math.h"

#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/optimizer.h"

namespace starring {
namespace {

class CudaVectorMathOnStream final : public CudaVectorMath {
 public:
  CudaVectorMathOnStream(int ordinal, CudaWatch* watch, std::unique_ptr<OwnedCudaStream> stream)
      : ordinal_(ordinal), watch_(watch), stream_(std::move(stream)) {}

  void Add(const float* a, const float* b, float* sum, int64_t count) override {
    Keep(SetDevice());
    Keep(CudaStatus(cuda::Add(stream_->get(), a, b, sum, count), "add"));
  }
  void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args) override {
    Keep(SetDevice());
    Keep(CudaStatus(EnqueueUpdate(stream_->get(), config, args, nullptr, nullptr), "optimizer"));
  }
  void CopyToDevice(const void* host, void* device, int64_t size_bytes) override {
    Keep(stream_->CopyToDevice(host, device, size_bytes));
  }
  void CopyToHost(const void* device, void* host, int64_t size_bytes) override {
    Keep(stream_->CopyToHost(device, host, size_bytes));
  }
  absl::Status Synchronize() override {
    Keep(stream_->Synchronize());
    return first_error_;
  }
  absl::Status MakeCurrent() override { return MakeCudaDeviceCurrent(ordinal_, watch_); }

 private:
  // A launch goes to the calling thread's current GPU, which must be the stream's.
  absl::Status SetDevice() const { return CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"); }
  void Keep(const absl::Status& status) { first_error_.Update(status); }

  const int ordinal_;
  CudaWatch* const watch_;
  const std::unique_ptr<OwnedCudaStream> stream_;
  absl::Status first_error_;
};

cuda::Update UpdateOf(const OptimizerConfig& config) {
  if (config.kind == OptimizerKind::kAdamW) return cuda::Update::kAdamW;
  if (StateVectorCount(config) == 0) return cuda::Update::kSgd;
  return config.nesterov ? cuda::Update::kNesterov : cuda::Update::kMomentum;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaVectorMath>> CreateCudaVectorMath(int ordinal, CudaWatch* watch) {
  ASSIGN_OR_RETURN(auto stream, OwnedCudaStream::Create(ordinal, watch));
  return std::make_unique<CudaVectorMathOnStream>(ordinal, watch, std::move(stream));
}

cudaError_t EnqueueUpdate(cudaStream_t stream, const OptimizerConfig& config, const UpdateArgs& args,
                          const CudaStepValues* bound, CudaStepResult* result) {
  const int64_t count = std::ssize(args.gradient);
  CHECK_EQ(args.parameters_in.size(), count);
  CHECK_EQ(args.parameters_out.size(), count);
  CHECK_EQ(args.state.size(), StateVectorCount(config));
  for (const std::span<float> state : args.state) CHECK_EQ(state.size(), count);
  CHECK_GE(args.update, 1);
  return cuda::ApplyUpdate(stream, {.update = UpdateOf(config),
                                    .count = count,
                                    .gradient = args.gradient.data(),
                                    .parameters_in = args.parameters_in.data(),
                                    .parameters_out = args.parameters_out.data(),
                                    .first = args.state.empty() ? nullptr : args.state[0].data(),
                                    .second = args.state.size() < 2 ? nullptr : args.state[1].data(),
                                    .scalars = MakeCudaOptimizerScalars(config, args.learning_rate, args.update),
                                    .bound = bound,
                                    .result = result});
}

}  // namespace starring
