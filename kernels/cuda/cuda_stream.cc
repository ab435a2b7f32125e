#include "kernels/cuda/cuda_stream.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "absl/memory/memory.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/cuda/channel_copy.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/peer_update.h"

namespace starring {
namespace {

class OwnedCudaEvent : public CudaEvent {
 public:
  OwnedCudaEvent(CudaWatch* watch, cudaEvent_t event) : watch_(watch), event_(event) {}
  // CUDA allows this while a record is queued, and frees the event when the stream has passed it.
  ~OwnedCudaEvent() override { cudaEventDestroy(event_); }
  absl::Status Wait() override {
    const CudaWatch::Call call(watch_, kWaitingForEvent);
    return CudaStatus(cudaEventSynchronize(event_), kWaitingForEvent);
  }
  absl::StatusOr<bool> HasPassed() override {
    const CudaWatch::Call call(watch_, kWaitingForEvent);  // a driver that hangs answers no question either
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // clears the error, which the next launch would report otherwise
      return false;
    }
    RETURN_IF_ERROR(CudaStatus(error, kWaitingForEvent));
    return true;
  }
  cudaEvent_t get() const { return event_; }

 private:
  static constexpr char kWaitingForEvent[] = "waiting for an event";

  CudaWatch* const watch_;
  const cudaEvent_t event_;
};

constexpr char kWaitingForGpu[] = "waiting for the GPU";

// This file has the only implementation, so that every event of a caller is one.
cudaEvent_t Get(CudaEvent* event) { return static_cast<OwnedCudaEvent*>(event)->get(); }

// The formula is chosen on the host, so that each kernel loads and stores only the states that it has.
cuda::Update UpdateOf(const OptimizerConfig& config) {
  if (config.kind == OptimizerKind::kAdamW) return cuda::Update::kAdamW;
  if (StateVectorCount(config) == 0) return cuda::Update::kSgd;
  return config.nesterov ? cuda::Update::kNesterov : cuda::Update::kMomentum;
}

// A row is a pixel's channels in the narrow tensor, and the first channels in the wide one.
cuda::ChannelPart PartOf(const CudaRows& rows) {
  return {.pixels = rows.count, .channels = rows.length, .wide_channels = rows.step};
}

class CudaVectorMathOnStream final : public CudaVectorMath {
 public:
  CudaVectorMathOnStream(int ordinal, CudaWatch* watch, std::unique_ptr<OwnedCudaStream> stream)
      : ordinal_(ordinal), watch_(watch), stream_(std::move(stream)) {}

  // The current GPU is set in every call, because any thread may call.
  void Add(const float* a, const float* b, float* sum, int64_t count) override {
    Keep(SetDevice());
    Keep(CudaStatus(cuda::Add(stream_->get(), a, b, sum, count), "add"));
  }
  void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args) override {
    Keep(SetDevice());
    Keep(CudaStatus(EnqueueUpdate(stream_->get(), config, args, nullptr, nullptr), "optimizer"));
  }
  void ApplyPeerUpdate(const OptimizerConfig& config, const CudaPeerUpdate& update) override {
    Keep(SetDevice());
    Keep(CudaStatus(cuda::ApplyPeerUpdate(stream_->get(), PeerUpdateOf(config, update)), "the update among GPUs"));
  }
  void RunPeerHop(const CudaPeerHop& hop) override {
    Keep(SetDevice());
    const cuda::PeerHopArgs args = {.rows = hop.rows, .left = hop.left, .own = hop.own, .out = hop.out};
    Keep(CudaStatus(cuda::RunPeerHop(stream_->get(), args), "a hop among GPUs"));
  }
  void CopyToDevice(const void* host, void* device, int64_t size_bytes) override {
    Keep(stream_->CopyToDevice(host, device, size_bytes));
  }
  void CopyToHost(const void* device, void* host, int64_t size_bytes) override {
    Keep(stream_->CopyToHost(device, host, size_bytes));
  }
  void CopyOnDevice(const void* from, void* to, int64_t size_bytes) override {
    Keep(stream_->CopyOnDevice(from, to, size_bytes));
  }
  void PackRows(const CudaRows& rows, const float* apart, float* packed) override {
    Keep(SetDevice());
    Keep(CudaStatus(cuda::CopyFromChannels(stream_->get(), PartOf(rows), apart, packed), "packing rows"));
  }
  void UnpackRows(const CudaRows& rows, const float* packed, float* apart) override {
    Keep(SetDevice());
    Keep(CudaStatus(cuda::CopyIntoChannels(stream_->get(), PartOf(rows), packed, apart), "unpacking rows"));
  }
  absl::Status Record(CudaEvent* event) override {
    Keep(stream_->Record(event));
    return first_error_;
  }
  absl::Status Synchronize() override {
    // This also returns errors of kernels, which CUDA reports at a later call.
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

}  // namespace

cuda::PeerUpdateArgs PeerUpdateOf(const OptimizerConfig& config, const CudaPeerUpdate& update) {
  const int ranks = update.reduction.world_size;
  // More would be read behind the tables of pointers.
  CHECK(2 <= ranks && ranks <= kPeerRanksMax) << ranks;
  CHECK(0 <= update.rank && update.rank < ranks) << update.rank;
  CHECK(0 <= update.rows.begin && update.rows.end() <= update.element_count)
      << update.rows.begin << " to " << update.rows.end() << " of " << update.element_count;
  CHECK_EQ(std::ssize(update.state), StateVectorCount(config));
  for (const std::span<float> state : update.state) CHECK_EQ(std::ssize(state), update.rows.size());
  const int64_t whole_end = update.element_count - update.element_count % ReductionBlockElements(ranks);
  cuda::PeerUpdateArgs args = {
      .update = UpdateOf(config),
      .rank_count = ranks,
      .rank = update.rank,
      .rows = update.rows,
      .first = update.state.empty() ? nullptr : update.state[0].data(),
      .second = update.state.size() < 2 ? nullptr : update.state[1].data(),
      .tree = update.reduction.order == SumOrder::kTree,
      .chunk_shift = std::countr_zero(static_cast<uint64_t>(ChunkElements(ranks))),
      .whole_end = whole_end,
      .last_elements = update.element_count - whole_end,
      .scalars = MakeCudaOptimizerScalars(config, update.learning_rate, update.update),
      .blocks_max = ranks == 2 ? 128 : 32,
  };
  std::ranges::copy(update.gradients, args.gradients);
  std::ranges::copy(update.parameters, args.parameters);
  return args;
}

absl::StatusOr<std::unique_ptr<CudaEvent>> CreateCudaEvent(int ordinal, CudaWatch* watch) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "cudaSetDevice"));
  cudaEvent_t event = nullptr;
  // A thread that waits sleeps, because loader and exchange need the cores. Timing would cost a write at every record.
  const unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync;
  RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate"));
  return std::make_unique<OwnedCudaEvent>(watch, event);
}

absl::StatusOr<std::unique_ptr<OwnedCudaStream>> OwnedCudaStream::Create(int ordinal, CudaWatch* watch) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "cudaSetDevice"));
  cudaStream_t stream = nullptr;
  // Non-blocking: an ordinary stream would wait for everything that any library puts on CUDA's default stream.
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  return absl::WrapUnique(new OwnedCudaStream(ordinal, watch, stream));
}

OwnedCudaStream::~OwnedCudaStream() {
  // Queued work may use memory that its owner frees next. An error has been reported, or will be by the next call.
  (void)Synchronize();
  cudaStreamDestroy(stream_);
}

absl::Status OwnedCudaStream::Record(CudaEvent* event) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
  // Without the flag a captured record would only order the graph's own nodes, and a thread that waits for the event
  // would never see it.
  const unsigned flags = captures_ ? cudaEventRecordExternal : cudaEventRecordDefault;
  return CudaStatus(cudaEventRecordWithFlags(Get(event), stream_, flags), "recording an event");
}

absl::Status OwnedCudaStream::Wait(CudaEvent* event) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
  // A plain wait in a capture is an edge from a record in the same capture. For any other event it would be an error.
  const unsigned flags = captures_ ? cudaEventWaitExternal : cudaEventWaitDefault;
  return CudaStatus(cudaStreamWaitEvent(stream_, Get(event), flags), "waiting for an event in a stream");
}

absl::Status OwnedCudaStream::Copy(const void* from, void* to, int64_t size_bytes, cudaMemcpyKind kind,
                                   const char* what) {
  if (size_bytes <= 0) return absl::OkStatus();
  // A copy from or to memory that is not pinned may wait for the stream, whatever its name says.
  const CudaWatch::Call call(watch_, what);
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
  return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), kind, stream_), what);
}

absl::Status OwnedCudaStream::CopyToDevice(const void* host, void* device, int64_t size_bytes) {
  return Copy(host, device, size_bytes, cudaMemcpyHostToDevice, "copying to the GPU");
}

absl::Status OwnedCudaStream::CopyToHost(const void* device, void* host, int64_t size_bytes) {
  return Copy(device, host, size_bytes, cudaMemcpyDeviceToHost, "copying from the GPU");
}

absl::Status OwnedCudaStream::CopyOnDevice(const void* from, void* to, int64_t size_bytes) {
  return Copy(from, to, size_bytes, cudaMemcpyDeviceToDevice, "copying on the GPU");
}

absl::Status OwnedCudaStream::Synchronize() {
  const CudaWatch::Call call(watch_, kWaitingForGpu);
  return CudaStatus(cudaStreamSynchronize(stream_), kWaitingForGpu);
}

absl::Status OwnedCudaStream::Follow(OwnedCudaStream* other, CudaEvent* event) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
  // Not external: in a capture the event is an edge of the graph, and takes this stream into the capture.
  RETURN_IF_ERROR(CudaStatus(cudaEventRecordWithFlags(Get(event), other->stream_, cudaEventRecordDefault), "forking"));
  RETURN_IF_ERROR(CudaStatus(cudaStreamWaitEvent(stream_, Get(event), cudaEventWaitDefault), "forking"));
  // From now on this stream's records and waits must be external too.
  captures_ = captures_ || other->captures_;
  return absl::OkStatus();
}

absl::Status OwnedCudaStream::BeginCapture() {
  // Thread-local, so that an exchange thread may allocate and copy on its own streams meanwhile: in the global mode
  // such a call would end the capture with an error.
  RETURN_IF_ERROR(CudaStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a graph"));
  captures_ = true;
  return absl::OkStatus();
}

absl::StatusOr<cudaGraph_t> OwnedCudaStream::EndCapture() {
  captures_ = false;
  cudaGraph_t graph = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaStreamEndCapture(stream_, &graph), "capturing a graph"));
  return graph;
}

absl::StatusOr<std::unique_ptr<CudaVectorMath>> CreateCudaVectorMath(int ordinal, CudaWatch* watch) {
  ASSIGN_OR_RETURN(auto stream, OwnedCudaStream::Create(ordinal, watch));
  return std::make_unique<CudaVectorMathOnStream>(ordinal, watch, std::move(stream));
}

cudaError_t EnqueueUpdate(cudaStream_t stream, const OptimizerConfig& config, const UpdateArgs& args,
                          const CudaStepValues* bound, CudaStepResult* result) {
  // The same checks as on the CPU: a span of another length would be memory out of bounds.
  ValidateUpdate(config, args);
  return cuda::ApplyUpdate(stream, {.update = UpdateOf(config),
                                    .count = std::ssize(args.gradient),
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
