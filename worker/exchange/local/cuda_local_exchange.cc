#include "worker/exchange/local/cuda_local_exchange.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"

namespace starring {
namespace {

class CudaLocalExchangeImpl final : public CudaLocalExchange {
 public:
  CudaLocalExchangeImpl(CudaDevice* device, const OptimizerConfig& optimizer)
      : device_(*device), optimizer_(optimizer) {}

  absl::Status Allocate(int64_t element_count) {
    for (int i = 0; i < StateVectorCount(optimizer_); ++i) {
      ASSIGN_OR_RETURN(auto memory, device_.Allocate(element_count * static_cast<int64_t>(sizeof(float))),
                       "optimizer state");
      state_spans_.emplace_back(memory->floats(), static_cast<size_t>(element_count));
      state_.push_back(std::move(memory));
    }
    return absl::OkStatus();
  }

  absl::Status Start(const JobSpec& job, std::span<float> parameters) override {
    if (job.world_size != 1 || job.rank != 0) {
      return absl::InvalidArgumentError(absl::StrCat("a local exchange has one worker, this is rank ", job.rank, " of ",
                                                     job.world_size, ": use --sync=star or --sync=ring"));
    }
    CHECK(job.optimizer == optimizer_);
    CHECK_EQ(std::ssize(parameters), job.layout.element_count());
    schedule_ = job.schedule;
    for (size_t i = 0; i < job.optimizer_state.size(); ++i) {
      CHECK_EQ(job.optimizer_state[i].size(), state_spans_[i].size());
      device_.CopyToDevice(job.optimizer_state[i].data(), state_[i]->data(),
                           static_cast<int64_t>(job.optimizer_state[i].size_bytes()));
    }
    return device_.Synchronize();  // the caller's memory ends
  }

  CudaOptimizerScalars ScalarsOf(int64_t step) const override {
    return MakeCudaOptimizerScalars(optimizer_, LearningRateAt(schedule_, step), step + 1);
  }

  void Apply(std::span<const float> gradients, std::span<float> parameters) override {
    device_.ApplyOptimizer(
        optimizer_,
        {.gradient = gradients, .parameters_in = parameters, .parameters_out = parameters, .state = state_spans_});
  }

  void Submit(int64_t, int, std::span<const float>) override { CHECK(false) << "no gradient leaves the GPU"; }
  absl::Status Await(int64_t, int) override { return absl::OkStatus(); }

  absl::Status Sum(SumPurpose, std::span<double> values) override {
    CHECK_LE(values.size(), kSumValuesMax);
    return absl::OkStatus();
  }

  absl::Status GatherOptimizerState(std::span<const std::span<float>> state) override {
    CHECK_EQ(state.size(), state_.size());
    for (size_t i = 0; i < state.size(); ++i) {
      CHECK_EQ(state[i].size(), state_spans_[i].size());
      device_.CopyToHost(state_[i]->data(), state[i].data(), static_cast<int64_t>(state[i].size_bytes()));
    }
    return device_.Synchronize();
  }

  void Abort(const absl::Status&) override {}
  absl::Status Finish() override { return absl::OkStatus(); }
  ExchangeCounters counters() const override { return {}; }

 private:
  CudaDevice& device_;
  const OptimizerConfig optimizer_;
  LearningRateSchedule schedule_;
  std::vector<std::unique_ptr<DeviceBuffer>> state_;
  std::vector<std::span<float>> state_spans_;
};

}  // namespace

int64_t CudaLocalExchange::StateBytes(const OptimizerConfig& optimizer, int64_t element_count) {
  return StateVectorCount(optimizer) * element_count * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<std::unique_ptr<CudaLocalExchange>> CudaLocalExchange::Create(CudaDevice* device,
                                                                             const OptimizerConfig& optimizer,
                                                                             int64_t element_count) {
  auto exchange = std::make_unique<CudaLocalExchangeImpl>(device, optimizer);
  RETURN_IF_ERROR(exchange->Allocate(element_count));
  return exchange;
}

}  // namespace starring
