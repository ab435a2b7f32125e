#include "worker/exchange/peer/ring_machine.h"

#include <chrono>
#include <utility>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"

namespace starring {

RingMachine::RingMachine(const RankMachineOptions& options, const Memory& memory)
    : buckets_(*options.buckets),
      owner_(*options.owner),
      parameters_(options.parameters),
      track_(options.track),
      is_in_memory_(!memory.own.empty()),
      is_on_gpu_(!owner_.own_parameters().empty()),
      gradients_(buckets_.bucket_count()) {
  CHECK(!is_on_gpu_ || !is_in_memory_) << "work on a GPU is enqueued, and memory of neighbours is written at once";
  CHECK_EQ(buckets_.world_size(), options.transport->world_size());
  CHECK_EQ(buckets_.element_count(), parameters_.size());
  if (options.transport->world_size() == 1) return;
  Ring::Options ring = {.transport = options.transport,
                        .sink = this,
                        .first_tag = options.first_tag,
                        .sum_elements_max = buckets_.bucket_bytes() / static_cast<int64_t>(sizeof(float)),
                        .groups_in_flight_max = options.groups_in_flight_max,
                        .track = track_,
                        .own = {},
                        .right = {}};
  if (is_on_gpu_) {
    // A bucket is one message, because each message costs a wait for the GPU. All ranks have GPUs, or none has.
    ring.message_bytes_max = buckets_.bucket_bytes();
    if (ring.groups_in_flight_max == 0) ring.groups_in_flight_max = GpuBucketsInFlightMax(buckets_);
  } else if (!is_in_memory_) {
    ring.message_bytes_max = kChunkBytesMax;
  }
  if (is_in_memory_) {
    ring.own.emplace(memory.own, buckets_.world_size());
    ring.right.emplace(memory.right, buckets_.world_size());
  }
  ring_.emplace(ring);
}

int64_t RingMachine::GpuElements(const BucketMap& buckets) {
  if (buckets.world_size() == 1) return 0;
  return GpuBucketsInFlightMax(buckets) * (buckets.bucket_bytes() / static_cast<int64_t>(sizeof(float)));
}

void RingMachine::Submit(int64_t step, int bucket, std::span<const float> gradient) {
  const ElementRange range = buckets_.bucket(bucket);
  CHECK_EQ(gradient.size(), range.size());
  CHECK(IsReady(bucket)) << "bucket " << bucket << " submitted twice without Await";
  if (!ring_.has_value()) {
    const TraceSpan span(track_, "apply", {.step = step, .bucket = bucket});
    Apply({.step = step, .bucket = bucket, .range = range, .sum = gradient, .parameters = Parameters(range)});
    return Complete();
  }
  gradients_[bucket] = gradient.data();
  ring_->Submit({.number = bucket, .elements = range, .labels = {.step = step, .bucket = bucket}});
}

BucketMachine::InFlight RingMachine::Oldest() const {
  CHECK(!IsIdle());
  const RingSum& sum = *ring_->Oldest();
  return {.step = sum.labels.step, .bucket = sum.labels.bucket};
}

ExchangeCounters RingMachine::counters() const {
  return {.bytes_sent = ring_.has_value() ? ring_->bytes_sent() : 0,
          .bytes_received = ring_.has_value() ? ring_->bytes_received() : 0,
          .shared_memory = is_in_memory_,
          .optimizer_seconds = optimizer_seconds_};
}

std::span<const float> RingMachine::Contribution(const RingSum& sum, ElementRange range) {
  const int64_t at = range.begin - sum.elements.begin;
  // The gradient begins with the bucket, and a range counts from the begin of the vector.
  return {gradients_[sum.number] + at, static_cast<size_t>(range.size())};
}

void RingMachine::CopyContribution(const RingSum& sum, ElementRange range, std::span<float> out) {
  owner_.Copy(Contribution(sum, range), out);
}

void RingMachine::Add(const RingSum& sum, ElementRange range, std::span<float> partial) {
  owner_.Add(Contribution(sum, range), partial);
}

void RingMachine::Finish(const RingSum& sum, ElementRange range, std::span<float> partial) {
  Apply({.step = sum.labels.step,
         .bucket = sum.labels.bucket,
         .range = range,
         .sum = partial,
         // The optimizer adds it in its own pass, which saves one over memory.
         .last = Contribution(sum, range),
         .parameters = Parameters(range)});
}

void RingMachine::Apply(const ApplyArgs& args) {
  const auto start = std::chrono::steady_clock::now();
  owner_.Apply(args);
  optimizer_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  has_applied_ = is_on_gpu_;
}

void RingMachine::Copy(std::span<const std::byte> from, std::span<std::byte> to) {
  const size_t count = from.size() / sizeof(float);
  owner_.Copy({reinterpret_cast<const float*>(from.data()), count}, {reinterpret_cast<float*>(to.data()), count});
}

void RingMachine::Complete() {
  if (!is_on_gpu_) return;
  const auto start = std::chrono::steady_clock::now();
  owner_.Complete();
  if (!std::exchange(has_applied_, false)) return;
  optimizer_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::span<std::byte> RingMachine::Result(const RingSum& /*sum*/, ElementRange range) {
  return std::as_writable_bytes(Parameters(range));
}

// No gradient: the bucket is ready (IsReady), and the caller may overwrite what it submitted.
void RingMachine::OnReady(const RingSum& sum) { gradients_[sum.number] = nullptr; }

}  // namespace starring
