#include "worker/step/gpu_memory.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "worker/step/cuda_local_optimizer.h"

namespace starring {
namespace {

constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

// "512.0 MiB" or "1.2 GiB".
std::string Text(int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  return size < kGiB ? absl::StrFormat("%.1f MiB", size / kMiB) : absl::StrFormat("%.1f GiB", size / kGiB);
}

// Names a part only if it exists: with several workers the exchange has the optimizer's state, and the data set is on
// the GPU only if --data_on_gpu puts it there.
std::string Parts(const GpuMemoryNeed& need) {
  std::string parts = absl::StrCat("activations ", Text(need.activations_bytes), ", parameters and gradients ",
                                   Text(need.parameters_bytes));
  if (need.optimizer_bytes > 0) absl::StrAppend(&parts, ", optimizer ", Text(need.optimizer_bytes));
  absl::StrAppend(&parts, ", batches ", Text(need.batches_bytes));
  if (need.data_bytes > 0) absl::StrAppend(&parts, ", data set ", Text(need.data_bytes));
  if (need.exchange_bytes > 0) absl::StrAppend(&parts, ", exchange ", Text(need.exchange_bytes));
  return parts;
}

}  // namespace

absl::StatusOr<GpuMemoryNeed> GpuMemoryNeedOf(const LayerFile& file, const NetworkOptions& network,
                                              const CudaTrainingStepOptions& step, const ExchangeBytes& exchange) {
  // Each part is computed next to the code that will allocate it, from the same options, and without a device.
  ASSIGN_OR_RETURN(const NetworkSize size, Network::SizeOf(file, network));
  return GpuMemoryNeed{.activations_bytes = size.arena_bytes,
                       .parameters_bytes = CudaParametersBytes(size.element_count) + size.rounded_bytes,
                       .optimizer_bytes = step.optimizer.has_value()
                                              ? CudaLocalOptimizer::StateBytes(*step.optimizer, size.element_count)
                                              : 0,
                       .batches_bytes = CudaBatchesBytes(step),
                       .data_bytes = CudaDataBytes(step),
                       // The step frees its own vectors only when it has those of the exchange, so both count.
                       .exchange_bytes = exchange.of == nullptr ? 0 : exchange.of(size.element_count),
                       .exchange_has_other_way = exchange.has_other_way};
}

absl::Status CheckGpuMemory(const GpuMemoryNeed& need, const CudaDevice& device) {
  ASSIGN_OR_RETURN(const int64_t free_bytes, device.FreeBytes());
  // This is no promise: another process on this GPU may allocate first, and operations take memory that is not counted.
  // A training that passes here may still end with ResourceExhausted, but one that cannot fit is told so at once.
  // Memory of the exchange may be left out: with too little of it, all ranks agree to go by way of the host
  // (worker/exchange/peer/gpu/gpu_memory.h, worker/exchange/peer/cuda_aware/cuda_aware_owner.h).
  const int64_t spared_bytes = need.exchange_has_other_way ? need.exchange_bytes : 0;
  if (need.total_bytes() - spared_bytes <= free_bytes) return absl::OkStatus();
  const CudaDeviceInfo& gpu = device.info();
  return absl::InvalidArgumentError(absl::StrCat(
      "GPU ", gpu.ordinal, " (", gpu.name, ") has too little memory: ", Text(need.total_bytes()), " are needed (",
      Parts(need), "), ", Text(free_bytes), " of ", Text(gpu.memory_bytes), " are free: give ",
      need.data_bytes > 0 ? "--data_on_gpu=off, " : "", "a smaller --global_batch, more GPUs or --device=cpu"));
}

absl::StatusOr<GpuMemoryNeed> PlanGpuMemory(const LayerFile& file, const NetworkOptions& network, DataOnGpu data_on_gpu,
                                            const CudaDevice& device, CudaTrainingStepOptions* step,
                                            const ExchangeBytes& exchange) {
  // kOn and kAuto are computed with the data set on the GPU first. It changes more than one part: batches then hold
  // samples' numbers instead of values.
  step->data_on_gpu = data_on_gpu != DataOnGpu::kOff;
  ASSIGN_OR_RETURN(GpuMemoryNeed need, GpuMemoryNeedOf(file, network, *step, exchange));
  if (data_on_gpu == DataOnGpu::kAuto) {
    ASSIGN_OR_RETURN(const int64_t free_bytes, device.FreeBytes());
    // The other half is for libraries and graphs, which allocate later, and for the next process on this GPU.
    const int64_t left_bytes = free_bytes - (need.total_bytes() - need.data_bytes);
    if (need.data_bytes > left_bytes / 2) {
      // The need is computed again and not only corrected by data_bytes, since batches now hold values.
      step->data_on_gpu = false;
      ASSIGN_OR_RETURN(need, GpuMemoryNeedOf(file, network, *step, exchange));
    }
  }
  // kOn that does not fit is refused here, with the advice to give --data_on_gpu=off.
  RETURN_IF_ERROR(CheckGpuMemory(need, device));
  return need;
}

std::string DescribeGpuMemory(const GpuMemoryNeed& need, const CudaDevice& device) {
  // These bytes are known only now: workspaces depend on the algorithms that the libraries chose for each shape.
  const int64_t operations_bytes = device.operations_bytes();
  return absl::StrCat("GPU memory: ", Text(need.total_bytes() + operations_bytes), " of ",
                      Text(device.info().memory_bytes), " (", Parts(need), ", operations ", Text(operations_bytes),
                      ")");
}

}  // namespace starring
