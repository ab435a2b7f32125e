#include "worker/exchange/peer/bucket_machine.h"

#include <algorithm>
#include <chrono>

#include "common/base/check.h"

namespace starring {

AllreduceMachine::AllreduceMachine(const Options& options)
    : buckets_(*options.buckets),
      owner_(*options.owner),
      parameters_(options.parameters),
      transport_(*options.transport),
      track_(options.track),
      // The sums have memory of their own: the transport wants arrays that do not overlap, the gradient is the
      // trainer's, and the optimizer still needs the old parameters.
      sum_(owner_.Allocate(std::ssize(parameters_))),
      in_flight_(buckets_.bucket_count(), false),
      submitted_ns_(track_ == nullptr ? 0 : buckets_.bucket_count(), 0) {
  CHECK_EQ(buckets_.element_count(), parameters_.size());
}

void AllreduceMachine::Submit(int64_t step, int bucket, std::span<const float> gradient) {
  const ElementRange range = buckets_.bucket(bucket);
  CHECK_EQ(gradient.size(), range.size());
  CHECK(!in_flight_[bucket]) << "bucket " << bucket << " submitted twice without Await";
  // One rank has nothing to exchange, so its bucket is over when Submit returns and is never in flight.
  if (transport_.world_size() == 1) return Apply({.step = step, .bucket = bucket}, gradient);
  in_flight_[bucket] = true;
  submitted_.push_back({.step = step, .bucket = bucket});
  if (track_ != nullptr) submitted_ns_[bucket] = TraceNow();
  // The least that an allreduce moves: each rank sends and receives all but its own part, twice.
  const int64_t bytes =
      2 * static_cast<int64_t>(gradient.size_bytes()) * (transport_.world_size() - 1) / transport_.world_size();
  counters_.bytes_sent += bytes;
  counters_.bytes_received += bytes;
  // All ranks submit buckets in ascending order (GradientExchange::Submit). That keeps the rule of the transport, that
  // all ranks post their allreduces in one order.
  transport_.PostAllreduce(gradient, sum_.subspan(range.begin, range.size()),
                           {.poster = this, .operation = static_cast<uint64_t>(bucket)});
}

void AllreduceMachine::OnCompletion(uint64_t operation) {
  const int bucket = static_cast<int>(operation);
  // Allreduces of different buckets may complete in any order.
  const auto found =
      std::find_if(submitted_.begin(), submitted_.end(), [&](const InFlight& s) { return s.bucket == bucket; });
  CHECK(found != submitted_.end());
  const ElementRange range = buckets_.bucket(bucket);
  if (track_ != nullptr) AddFlight(track_, "exchange", submitted_ns_[bucket], {.step = found->step, .bucket = bucket});
  // Every rank updates every element from the same sum, so that nothing is sent afterwards. The bucket is ready only
  // when its parameters are the new ones.
  Apply(*found, sum_.subspan(range.begin, range.size()));
  submitted_.erase(found);
  in_flight_[bucket] = false;
}

void AllreduceMachine::Apply(const InFlight& submitted, std::span<const float> sum) {
  const TraceSpan span(track_, "apply", {.step = submitted.step, .bucket = submitted.bucket});
  const ElementRange range = buckets_.bucket(submitted.bucket);
  const auto start = std::chrono::steady_clock::now();
  owner_.Apply({.step = submitted.step,
                .bucket = submitted.bucket,
                .range = range,
                .sum = sum,
                .parameters = parameters_.subspan(range.begin, range.size())});
  owner_.Complete();
  counters_.optimizer_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

BucketMachine::InFlight AllreduceMachine::Oldest() const {
  CHECK(!submitted_.empty());
  return submitted_.front();
}

}  // namespace starring
