#include "worker/exchange/peer/gpu_ring_machine.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/reduce/owner_map.h"

namespace starring {
namespace {

// An operation's number: bucket << 2 | what is waited for.
constexpr uint64_t kRight = 0;  // the right neighbour's last round
constexpr uint64_t kLeft = 1;   // a signal of the left neighbour
constexpr uint64_t kHop = 2;    // the GPU

Transport::Token TokenOf(Transport::Poster* poster, int bucket, uint64_t what) {
  return {.poster = poster, .operation = static_cast<uint64_t>(bucket) << 2 | what};
}

int64_t BytesOf(std::span<const ElementRange> ranges) {
  int64_t elements = 0;
  for (const ElementRange& range : ranges) elements += range.size();
  return elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace

GpuRingMachine::GpuRingMachine(const Options& options)
    : options_(options),
      buckets_(*options.buckets),
      hops_(*options.hops),
      board_(*options.board),
      transport_(*options.transport),
      rank_(transport_.rank()),
      rank_count_(transport_.world_size()),
      schedule_({.rank = rank_, .rank_count = rank_count_}),
      state_(buckets_.bucket_count()) {
  CHECK_GE(rank_count_, 2);
  CHECK_EQ(buckets_.world_size(), rank_count_);
  CHECK_EQ(std::ssize(options_.own_gradient), buckets_.element_count());
  const OwnerMap owners = OwnerMap::SplitChunks(rank_count_);
  for (int b = 0; b < buckets_.bucket_count(); ++b) {
    for (int chunk = 0; chunk < rank_count_; ++chunk) bytes_.push_back(BytesOf(owners.SliceOf(buckets_.sum(b), chunk)));
  }
  counters_.shared_memory = true;
}

void GpuRingMachine::Submit(int64_t step, int bucket, std::span<const float> gradient) {
  const ElementRange range = buckets_.bucket(bucket);
  CHECK_EQ(gradient.size(), range.size());
  CHECK(gradient.data() == options_.own_gradient.data() + range.begin) << "a gradient at another place of a GPU";
  Bucket& state = state_[bucket];
  CHECK(!state.in_flight) << "bucket " << bucket << " submitted twice without Await";
  state.in_flight = true;
  state.step = step;
  state.hop = 0;
  if (options_.track != nullptr) state.submitted_ns = TraceNow();
  submitted_.push_back({.step = step, .bucket = bucket});
  Signal(bucket, schedule_.right());
  transport_.PostWait(SignalsOf(bucket, schedule_.right()), state.signals_before, TokenOf(this, bucket, kRight));
}

// Only one neighbour waits for a signal.
void GpuRingMachine::Signal(int bucket, int listener) {
  board_.Arrive(bucket * rank_count_ + rank_);
  board_.Ring(listener);
}

void GpuRingMachine::WaitForLeft(int bucket) {
  const Bucket& state = state_[bucket];
  transport_.PostWait(SignalsOf(bucket, schedule_.Left(1)), state.signals_before + state.hop + 1,
                      TokenOf(this, bucket, kLeft));
}

void GpuRingMachine::OnCompletion(uint64_t operation) {
  const int bucket = static_cast<int>(operation >> 2);
  switch (operation & 3) {
    case kRight:
      return WaitForLeft(bucket);
    case kLeft:
      return BeginHop(bucket);
    default:
      return EndHop(bucket);
  }
}

void GpuRingMachine::BeginHop(int bucket) {
  Bucket& state = state_[bucket];
  state.hop_began_ns = TraceNow();
  const int chunk = schedule_.ChunkOf(state.hop);
  const RingHops::From from = state.hop == 0 ? RingHops::From::kGradient : RingHops::From::kPartialSum;
  int64_t number = 0;
  if (schedule_.Copies(state.hop)) {
    number = hops_.BeginCopy(bucket, chunk);
  } else if (schedule_.Updates(state.hop)) {
    number = hops_.BeginUpdate(state.step, bucket, from);
  } else {
    number = hops_.BeginAdd(bucket, chunk, from);
  }
  counters_.bytes_received += bytes(bucket, chunk);
  // The right neighbour pulls the next chunk in its hop of this number.
  counters_.bytes_sent += bytes(bucket, (chunk + 1) % rank_count_);
  transport_.PostWait(hops_.hops_finished(), number, TokenOf(this, bucket, kHop));
}

void GpuRingMachine::EndHop(int bucket) {
  Bucket& state = state_[bucket];
  const bool updated = schedule_.Updates(state.hop);
  if (updated) counters_.optimizer_seconds += static_cast<double>(TraceNow() - state.hop_began_ns) * 1e-9;
  AddFlight(options_.track, updated ? "apply" : "hop", state.hop_began_ns, {.step = state.step, .bucket = bucket});
  ++state.hop;
  const bool is_last = state.hop == schedule_.hop_count();
  // The last signal says that this rank reads nothing of its left neighbour any more. All others are for the right one.
  Signal(bucket, is_last ? schedule_.Left(1) : schedule_.right());
  if (!is_last) return WaitForLeft(bucket);
  FinishBucket(bucket);
}

void GpuRingMachine::FinishBucket(int bucket) {
  Bucket& state = state_[bucket];
  AddFlight(options_.track, "exchange", state.submitted_ns, {.step = state.step, .bucket = bucket});
  // Buckets may be ready in another order than they were submitted in.
  submitted_.erase(std::ranges::find(submitted_, bucket, &InFlight::bucket));
  state.signals_before += schedule_.signal_count();
  state.in_flight = false;
}

BucketMachine::InFlight GpuRingMachine::Oldest() const {
  CHECK(!submitted_.empty());
  return submitted_.front();
}

}  // namespace starring
