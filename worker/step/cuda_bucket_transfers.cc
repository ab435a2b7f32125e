#include "worker/step/cuda_bucket_transfers.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/metrics/trace.h"

namespace starring {
namespace {

// The exchange may have mapped its memory for reading only. Whether such memory can be pinned depends on the machine: a
// GPU without the host's page tables requires the read-only flag of cudaHostRegister, and a GPU that cannot keep that
// promise (cudaDevAttrHostRegisterReadOnlySupported) refuses the flag. So both are tried.
std::unique_ptr<PinnedBuffer> PinForReading(CudaDevice& device, std::span<const float> memory) {
  for (const auto use : {CudaDevice::PinFor::kRead, CudaDevice::PinFor::kReadAndWrite}) {
    auto pinned = device.Pin(memory.data(), static_cast<int64_t>(memory.size_bytes()), use);
    if (pinned.ok()) return *std::move(pinned);
  }
  return nullptr;
}

}  // namespace

CudaBucketTransfers::CudaBucketTransfers(const TrainingStepParts& parts, CudaDevice* device,
                                         CudaLocalOptimizer* optimizer)
    : device_(*device),
      optimizer_(optimizer),
      exchange_(*parts.exchange),
      buckets_(*parts.buckets),
      layout_(parts.network->layout()),
      in_flight_({.buckets = parts.buckets,
                  .layout = &layout_,
                  .exchange = parts.exchange,
                  .rank = parts.rank,
                  .exchange_part = parts.exchange_part}) {}

absl::StatusOr<std::unique_ptr<CudaBucketTransfers>> CudaBucketTransfers::Create(const TrainingStepParts& parts,
                                                                                 CudaDevice* device,
                                                                                 CudaLocalOptimizer* optimizer) {
  auto transfers = absl::WrapUnique(new CudaBucketTransfers(parts, device, optimizer));
  RETURN_IF_ERROR(transfers->Allocate());
  return transfers;
}

CudaBucketTransfers::~CudaBucketTransfers() {
  // The buffers are freed next, so no copy may be in flight. An error has no caller to go to.
  for (CudaStream* const stream : {uploads_.get(), downloads_.get()}) {
    if (stream != nullptr) (void)stream->Synchronize();
  }
}

std::span<float> CudaBucketTransfers::Whole(PinnedBuffer& buffer) const {
  return {static_cast<float*>(buffer.data()), static_cast<size_t>(element_count())};
}

std::span<float> CudaBucketTransfers::Whole(DeviceBuffer& buffer) const {
  return {buffer.floats(), static_cast<size_t>(element_count())};
}

absl::Status CudaBucketTransfers::Allocate() {
  // The way is known only when the exchange has started, and the exchange starts with own_parameters_. So both arrays
  // of parameters are allocated here; BeginHost and BeginDevice free the one that their way does not use.
  const int64_t bytes = element_count() * kFloatBytes;
  ASSIGN_OR_RETURN(own_device_parameters_, device_.Allocate(bytes), "parameters");
  parameters_ = Whole(*own_device_parameters_);
  ASSIGN_OR_RETURN(own_device_gradients_, device_.Allocate(bytes), "gradients");
  gradients_ = Whole(*own_device_gradients_);
  ASSIGN_OR_RETURN(own_parameters_, device_.AllocatePinned(bytes), "parameters");
  // Pinned memory is not initialised.
  std::ranges::fill(initial_parameters(), 0.0f);
  ASSIGN_OR_RETURN(uploads_, device_.CreateStream());
  ASSIGN_OR_RETURN(downloads_, device_.CreateStream());
  ASSIGN_OR_RETURN(uploaded_, device_.CreateEvent());
  ASSIGN_OR_RETURN(settled_, device_.CreateEvent());
  // Each bucket has an event of its own: the host submits a bucket while later ones are still being written by
  // backward.
  for (int b = 0; b < buckets_.bucket_count(); ++b) {
    ASSIGN_OR_RETURN(downloaded_.emplace_back(), device_.CreateEvent());
  }
  return absl::OkStatus();
}

absl::Status CudaBucketTransfers::Begin(StepTimer* timer) {
  timer_ = timer;
  // With an optimizer on the GPU the exchange gets no bucket, so its memory does not matter.
  if (optimizer_ == nullptr) {
    streams_ = exchange_.streams();
    const bool is_on_device = exchange_.memory().place == ExchangeMemory::Place::kDevice;
    way_ = streams_ != nullptr ? Way::kStream : is_on_device ? Way::kDevice : Way::kHost;
  }
  if (way_ == Way::kHost || way_ == Way::kDevice) RETURN_IF_ERROR(AllocateFindings(), "findings");
  if (way_ == Way::kDevice || way_ == Way::kStream) return BeginDevice();
  if (way_ == Way::kHost) RETURN_IF_ERROR(BeginHost());
  // With kNone and kHost, the exchange has put rank 0's parameters into host memory. Forward of the first step awaits
  // no bucket, so nothing but this copy brings them to the GPU.
  device_.CopyToDevice(host_parameters().data(), parameters_.data(), element_count() * kFloatBytes);
  return device_.Synchronize();
}

absl::Status CudaBucketTransfers::AllocateFindings() {
  const auto count = static_cast<size_t>(buckets_.bucket_count());
  ASSIGN_OR_RETURN(findings_, device_.AllocatePinned(static_cast<int64_t>(sizeof(CudaStepResult) * count)));
  // -1 means "all finite". It is never reset: a run ends with the first finding.
  std::uninitialized_fill_n(FindingOf(0), count, CudaStepResult{});
  return absl::OkStatus();
}

CudaStepResult* CudaBucketTransfers::FindingOf(int bucket) const {
  return static_cast<CudaStepResult*>(findings_->data()) + bucket;
}

absl::Status CudaBucketTransfers::BeginHost() {
  // The GPU copies straight from the memory that a star shares with its servers, if that memory can be pinned. This
  // saves a copy of all parameters by the host in every step. Memory that cannot be pinned is no error: Upload then
  // copies.
  if (const std::span<const float> memory = exchange_.memory().parameters; !memory.empty()) {
    pinned_parameters_ = PinForReading(device_, memory);
    if (pinned_parameters_ == nullptr) {
      // Begin uploads host_parameters(), which are own_parameters_ as long as those exist.
      std::ranges::copy(memory, initial_parameters().begin());
    } else {
      own_parameters_.reset();
    }
  }
  const int64_t bytes = element_count() * kFloatBytes;
  if (!exchange_.memory().gradients.empty()) {
    // Downloads into the exchange's own memory make Submit free of copies.
    const std::span<float> memory = exchange_.memory().gradients.back();
    if (auto pinned = device_.Pin(memory.data(), bytes, CudaDevice::PinFor::kReadAndWrite); pinned.ok()) {
      pinned_gradients_ = *std::move(pinned);
      host_gradients_ = memory;
    }
  }
  // The exchange has no memory for gradients, or it cannot be pinned. Pageable memory would not do: a copy to it
  // returns only when it is complete, so this thread would wait for each bucket.
  if (host_gradients_.empty()) {
    ASSIGN_OR_RETURN(own_gradients_, device_.AllocatePinned(bytes), "gradients");
    host_gradients_ = Whole(*own_gradients_);
  }
  return absl::OkStatus();
}

absl::Status CudaBucketTransfers::BeginDevice() {
  const std::span<const float> memory = exchange_.memory().parameters;
  CHECK_EQ(std::ssize(memory), element_count());
  // Ours are for the other ways. The cast is safe: only const uses of parameters_ follow for these two.
  own_device_parameters_.reset();
  parameters_ = {const_cast<float*>(memory.data()), memory.size()};
  // Other ranks read the gradients where the exchange has a place for them.
  if (!exchange_.memory().gradients.empty()) {
    gradients_ = exchange_.memory().gradients.back();
    own_device_gradients_.reset();
  }
  // host_parameters() are valid after Begin, as after Settle.
  device_.CopyToHost(parameters_.data(), own_parameters_->data(), element_count() * kFloatBytes);
  return device_.Synchronize();
}

std::string CudaBucketTransfers::name() const {
  if (way_ == Way::kNone) return "";
  if (way_ == Way::kHost) return "host-staged";
  if (way_ == Way::kStream) return "gpu-memory-graph";
  return exchange_.memory().gradients.empty() ? "cuda-aware" : "gpu-memory";
}

absl::Status CudaBucketTransfers::Bring(ElementRange range) {
  if (works_in_stream()) return absl::OkStatus();
  bool uploads = false;
  // Each bucket is uploaded as soon as it has arrived, while the host waits for the next one.
  RETURN_IF_ERROR(in_flight_.Await(range, *timer_, [&](int bucket) {
    if (way_ == Way::kDevice) return absl::OkStatus();
    uploads = true;
    return Upload(bucket);
  }));
  if (!uploads) return absl::OkStatus();
  // One event serves all calls: a stream that was told to wait waits for the record of that moment, and a later record
  // does not move it. kDevice needs none: Await returns when the exchange's own work on the GPU is done.
  RETURN_IF_ERROR(uploads_->Record(uploaded_.get()));
  return device_.stream()->Wait(uploaded_.get());
}

absl::Status CudaBucketTransfers::Upload(int bucket) {
  const TraceSpan span(timer_->track(), "H2D", {.bucket = bucket});
  const ElementRange range = buckets_.bucket(bucket);
  const std::span<const float> theirs = exchange_.memory().parameters;
  // Memory that could not be pinned is copied to pinned memory first, whose last upload has ended: see the table.
  if (!theirs.empty() && pinned_parameters_ == nullptr) {
    std::copy_n(theirs.begin() + range.begin, range.size(), initial_parameters().begin() + range.begin);
  }
  // own_parameters_ is null exactly if the exchange's memory is pinned (BeginHost).
  const float* const from = own_parameters_ == nullptr ? theirs.data() : initial_parameters().data();
  return uploads_->CopyToDevice(from + range.begin, parameters_.data() + range.begin, range.size() * kFloatBytes);
}

absl::Status CudaBucketTransfers::Complete(int64_t begin) {
  if (way_ == Way::kNone) return absl::OkStatus();
  // Backward writes the vector from its end, and buckets are numbered from the end. So a bucket is complete as soon as
  // `begin` has reached its first element, and buckets complete in their order. One layer may complete several.
  for (; next_bucket_ < buckets_.bucket_count() && buckets_.bucket(next_bucket_).begin >= begin; ++next_bucket_) {
    if (way_ == Way::kStream) {
      // A branch: the waits for other ranks do not hold backward back.
      RETURN_IF_ERROR(device_.Fork(downloads_.get()));
      RETURN_IF_ERROR(streams_->EnqueueBucket(downloads_.get(), slot_, next_bucket_, values_));
      continue;
    }
    const ElementRange range = buckets_.bucket(next_bucket_);
    const float* const from = gradients_.data() + range.begin;
    // The search comes before the fork, so that the event for which the host waits also says that the finding is there.
    device_.FindNonFinite(from, range.size(), FindingOf(next_bucket_));
    // The copy is a branch of the graph: backward of the next layers does not wait for the bus.
    RETURN_IF_ERROR(device_.Fork(downloads_.get()));
    if (way_ == Way::kHost) {
      RETURN_IF_ERROR(downloads_->CopyToHost(from, host_gradients_.data() + range.begin, range.size() * kFloatBytes));
    }
    RETURN_IF_ERROR(downloads_->Record(downloaded_[static_cast<size_t>(next_bucket_)].get()));
  }
  return absl::OkStatus();
}

absl::Status CudaBucketTransfers::FinishBackward() {
  if (way_ == Way::kNone) {
    optimizer_->Apply(gradients(), parameters_);
    return absl::OkStatus();
  }
  // A bucket that no layer completed would never be submitted, and the other ranks would wait for it.
  CHECK_EQ(next_bucket_, buckets_.bucket_count());
  next_bucket_ = 0;
  if (way_ == Way::kStream) RETURN_IF_ERROR(streams_->EnqueueEnd(downloads_.get(), slot_));
  // A capture must not end with an open branch. Without a graph the join keeps the next step's backward from
  // overwriting gradients that are still being copied.
  return device_.Join(downloads_.get());
}

void CudaBucketTransfers::AbandonBackward() {
  next_bucket_ = 0;
  // It fails where the branch has not begun, which spoils a capture that nobody needs.
  (void)device_.Join(downloads_.get());
}

CudaOptimizerScalars CudaBucketTransfers::ScalarsOf(int64_t step) const {
  return way_ == Way::kStream ? streams_->ScalarsOf(RoundOf(step)) : CudaOptimizerScalars{};
}

void CudaBucketTransfers::BeginStep(int64_t step, const CudaStepValues* values) {
  slot_ = StreamExchange::SlotOf(RoundOf(step));
  values_ = values;
}

absl::Status CudaBucketTransfers::AwaitStep(int64_t step, CudaEvent* done) {
  RETURN_IF_ERROR(AwaitEnd(step, done));
  if (way_ != Way::kStream) return absl::OkStatus();
  // The parameters of all ranks are spoilt by then, and later steps may be on the GPU. All ranks end here.
  const auto found = streams_->FindNonFinite(RoundOf(step));
  if (!found.has_value()) return absl::OkStatus();
  return in_flight_.NonFinite(step, found->element, "not finite", found->rank);
}

absl::Status CudaBucketTransfers::AwaitEnd(int64_t step, CudaEvent* done) {
  return way_ == Way::kStream ? streams_->AwaitRound(RoundOf(step), done) : done->Wait();
}

absl::Status CudaBucketTransfers::AwaitDevice(int64_t step) {
  if (way_ == Way::kStream) {
    RETURN_IF_ERROR(device_.stream()->Record(settled_.get()));
    // Findings are left to AwaitStep: an earlier step may have some, and must be named first.
    RETURN_IF_ERROR(streams_->AwaitRound(RoundOf(step), settled_.get()));
  }
  return device_.Synchronize();
}

absl::Status CudaBucketTransfers::SubmitAll(int64_t step) {
  // Here the host waits for the GPU's backward. SubmitFrom counts its own time as the exchange's.
  timer_->Enter(StepPart::kBackward);
  // The step has been enqueued, so waiting for an event waits for this step's record of it. Backward completes buckets
  // in this order: the exchange works on the first while backward writes the last.
  const std::span<const float> values = way_ == Way::kDevice ? gradients() : host_gradients_;
  for (int b = 0; b < buckets_.bucket_count(); ++b) {
    {
      const TraceSpan span(timer_->track(), "D2H", {.step = step, .bucket = b});
      RETURN_IF_ERROR(downloaded_[static_cast<size_t>(b)]->Wait());
    }
    RETURN_IF_ERROR(CheckFinite(step, b));
    in_flight_.SubmitFrom(buckets_.bucket(b).begin, step, values, *timer_);
  }
  return absl::OkStatus();
}

absl::Status CudaBucketTransfers::CheckFinite(int64_t step, int bucket) const {
  // The GPU writes findings to pinned memory. They can be read without a copy, because the host has waited for the
  // event after the search.
  const int64_t in_bucket = FindingOf(bucket)->non_finite_element;
  if (in_bucket < 0) return absl::OkStatus();
  const int64_t element = buckets_.bucket(bucket).begin + in_bucket;
  // With kDevice the value is on the GPU only, and the message does without it.
  if (way_ == Way::kDevice) return NonFinite(step, element);
  return in_flight_.NonFinite(step, element, absl::StrCat(host_gradients_[static_cast<size_t>(element)]));
}

absl::Status CudaBucketTransfers::NonFinite(int64_t step, int64_t element) const {
  return in_flight_.NonFinite(step, element, "not finite");
}

absl::Status CudaBucketTransfers::Settle() {
  // With kHost, host_parameters() are complete with the last Await, since that is where the exchange writes them or
  // Upload copies them. The other ways have them on the GPU only.
  RETURN_IF_ERROR(Bring({0, element_count()}));
  if (way_ != Way::kHost) {
    device_.CopyToHost(parameters_.data(), own_parameters_->data(), element_count() * kFloatBytes);
  }
  return device_.Synchronize();
}

std::span<const float> CudaBucketTransfers::host_parameters() const {
  return own_parameters_ == nullptr ? exchange_.memory().parameters : Whole(*own_parameters_);
}

}  // namespace starring
