// A worker's parameters and gradients on its GPU, and how their buckets get to the exchange and back.
//
// Words. One of four *ways*, known when the exchange has started:
//   kNone     one worker: nothing is exchanged, the optimizer runs on the GPU
//   kHost     pinned host copies: a bucket's gradients go to the host when backward has written them, new parameters
//             come back when the exchange has made them
//   kDevice   the exchange itself reads and writes the memory of the GPU (ExchangeMemory::place)
//   kStream   the same, in the order of D: the GPU waits for other ranks itself (stream_exchange.h)
//
// Order of the accesses. S is the device's stream, D the stream of downloads, U that of uploads; t is a step, b a
// bucket, l the bucket's last layer in backward. "Host" is the device's thread, the only one that enqueues on S, D and
// U.
//
//   what                                 must follow                          by
//   D copies gradients of b, t           S wrote them (backward of l)         Fork: D waits for S as it was then
//   host submits b, t, and reads the     D copied them, and S looked for      host waits for the event recorded on D
//     finding about them                   values that are not finite
//   exchange overwrites host parameters  U uploaded those of step t - 1,      S waited for U's copy before the backward
//     of b, t                              and S has read them                  whose event the host waited for
//   U uploads parameters of b, t         the exchange made them               host: Await returns first
//   S's forward of t + 1 reads b         U uploaded them                      S waits for the event recorded on U
//   S's backward of t + 1 overwrites     D copied those of t                  Join: S waits for D at the end of t
//     device gradients of b
//   D of t + 1 overwrites host           the exchange has read those of t     host: Await of every bucket comes before
//     gradients of b                                                            the launch that holds backward of t + 1
//
// kDevice: D copies nothing, but its event still says that S wrote b. The exchange starts after the host waited for
// that event, and it is done with b when Await returns, before anything is enqueued on S that reads or overwrites b.
//
// kStream: the exchange's work on b is on D, behind the fork, so that backward goes on meanwhile; S waits for the end
// of all of it (Join) before the next step's forward. No host waits, so steps queue as with one worker.
//
// Thread safety: one thread, the device's.
#ifndef STARRING_WORKER_STEP_CUDA_BUCKET_TRANSFERS_H_
#define STARRING_WORKER_STEP_CUDA_BUCKET_TRANSFERS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/stream_exchange.h"
#include "worker/step/cuda_local_optimizer.h"
#include "worker/step/in_flight_buckets.h"
#include "worker/step/step_timer.h"
#include "worker/step/training_step.h"

namespace starring {

class CudaBucketTransfers {
 public:
  // `optimizer`: applies the updates of a job with one worker; null: the exchange applies them. All outlive the
  // transfers, which end before the exchange does. ResourceExhausted with the number of bytes.
  static absl::StatusOr<std::unique_ptr<CudaBucketTransfers>> Create(const TrainingStepParts& parts, CudaDevice* device,
                                                                     CudaLocalOptimizer* optimizer);
  ~CudaBucketTransfers();

  // Pinned host memory, in which the exchange starts. Valid until Begin.
  std::span<float> initial_parameters() { return Whole(*own_parameters_); }
  // The exchange has started.
  absl::Status Begin(StepTimer* timer);

  // For the run record: empty, "host-staged", "cuda-aware", "gpu-memory" or "gpu-memory-graph".
  std::string name() const;
  // Whether a step's parameters are made in the order of the device's stream: Bring has nothing to wait for, SubmitAll
  // nothing to submit, and the next step may be enqueued at once.
  bool works_in_stream() const { return way_ == Way::kNone || way_ == Way::kStream; }

  // Device memory, after Begin.
  std::span<const float> parameters() const { return parameters_; }
  std::span<float> gradients() { return gradients_; }

  // Work that is enqueued on the device's stream from now on runs after the parameters in `range` have arrived. Not in
  // a capture, because it may wait for the exchange.
  absl::Status Bring(ElementRange range);

  // The factors of the update of `step`, for its step values; those of an optimizer that is not the exchange's are the
  // caller's. After Begin.
  CudaOptimizerScalars ScalarsOf(int64_t step) const;
  // Work that is enqueued or captured from now on belongs to `step`, whose values will be in `values`, device memory.
  void BeginStep(int64_t step, const CudaStepValues* values);

  // Called in backward, captured or not, when the work enqueued so far writes the last gradients from element `begin`
  // on: enqueues the download of every bucket that is complete by then.
  absl::Status Complete(int64_t begin);
  // Called after backward. kNone: applies the optimizer, which also looks for gradients that are not finite
  // (CudaDevice::BindStepResult).
  absl::Status FinishBackward();
  // Called instead after an error in a capture: ends the branch, so that the capture can end.
  void AbandonBackward();

  // Called after the launch: waits for each bucket of the step, refuses values that are not finite, and submits the
  // bucket. Not with kNone.
  absl::Status SubmitAll(int64_t step);
  // Waits for `done`, which was recorded after `step`, and refuses a gradient of any rank that was not finite. Only if
  // works_in_stream().
  absl::Status AwaitStep(int64_t step, CudaEvent* done);
  // Waits for `done` alone, and leaves such a gradient to AwaitStep. Only if works_in_stream().
  absl::Status AwaitEnd(int64_t step, CudaEvent* done);
  // Waits for all that is on the device's stream by now, whatever the way is, and looks for no such gradient. REQUIRES:
  // the steps before `step` have been awaited, if works_in_stream().
  absl::Status AwaitDevice(int64_t step);
  // The error for CudaStepResult::non_finite_element; it names the tensor of `element`.
  absl::Status NonFinite(int64_t step, int64_t element) const;

  // Waits until the device and host_parameters() have the parameters that the next step reads.
  absl::Status Settle();
  std::span<const float> host_parameters() const;

 private:
  enum class Way { kNone, kHost, kDevice, kStream };

  CudaBucketTransfers(const TrainingStepParts& parts, CudaDevice* device, CudaLocalOptimizer* optimizer);
  absl::Status Allocate();
  absl::Status AllocateFindings();
  CudaStepResult* FindingOf(int bucket) const;
  absl::Status BeginHost();
  absl::Status BeginDevice();
  absl::Status Upload(int bucket);
  absl::Status CheckFinite(int64_t step, int bucket) const;
  int64_t element_count() const { return layout_.element_count(); }
  std::span<float> Whole(PinnedBuffer& buffer) const;
  std::span<float> Whole(DeviceBuffer& buffer) const;

  CudaDevice& device_;
  CudaLocalOptimizer* const optimizer_;  // null: the exchange has one
  GradientExchange& exchange_;
  const BucketMap& buckets_;
  const Layout& layout_;
  InFlightBuckets in_flight_;
  StepTimer* timer_ = nullptr;
  Way way_ = Way::kNone;
  StreamExchange* streams_ = nullptr;  // kStream: the exchange's
  int slot_ = 0;                       // kStream: of the step that is enqueued
  const CudaStepValues* values_ = nullptr;
  int next_bucket_ = 0;  // the first one of this backward that is not complete

  std::unique_ptr<CudaStream> uploads_, downloads_;
  std::unique_ptr<CudaEvent> uploaded_, settled_;
  std::vector<std::unique_ptr<CudaEvent>> downloaded_;  // of each bucket
  std::unique_ptr<DeviceBuffer> own_device_parameters_, own_device_gradients_;
  std::span<float> parameters_, gradients_;  // device memory: ours, or the exchange's
  // kHost. The exchange's memory, if it has some that can be pinned; otherwise ours, and the exchange or Upload copies.
  std::unique_ptr<PinnedBuffer> own_parameters_, own_gradients_;
  std::unique_ptr<PinnedBuffer> pinned_parameters_, pinned_gradients_;
  std::span<float> host_gradients_;
  // kHost, kDevice: for each bucket, a gradient that is not finite. The GPU writes here itself, and only if it finds
  // one, so that nothing has to be copied in the usual case.
  std::unique_ptr<PinnedBuffer> findings_;
};

}  // namespace starring

#endif  // STARRING_WORKER_STEP_CUDA_BUCKET_TRANSFERS_H_
