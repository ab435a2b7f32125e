#include "worker/exchange/peer/memory_machine.h"

#include <algorithm>
#include <chrono>

#include "absl/container/inlined_vector.h"
#include "common/arithmetic/sum_in_order.h"
#include "common/base/check.h"
#include "common/base/copy_array.h"
#include "common/job/leaf_shares.h"
#include "common/job/owned_slices.h"

namespace starring {
namespace {

// An operation's number: bucket << 2 | which count.
constexpr uint64_t kArrivals = 0;
constexpr uint64_t kUpdates = 1;
constexpr uint64_t kOwner = 2;  // what an owner that works by itself has done

Transport::Token TokenOf(Transport::Poster* poster, int bucket, uint64_t count) {
  return {.poster = poster, .operation = static_cast<uint64_t>(bucket) << 2 | count};
}

// The longest piece of a bucket between two looks at the board and the network: 128 KiB of each gradient.
constexpr int64_t kPieceElements = 32768;

}  // namespace

MemoryMachine::MemoryMachine(const Options& options)
    : options_(options),
      buckets_(*options.buckets),
      board_(*options.board),
      transport_(*options.transport),
      rank_(transport_.rank()),
      worker_count_(transport_.world_size() - options.server_count),
      owners_(options.server_count > 0 ? OwnerMap::ShardRanges(options.server_count) : OwnerMap::Ranges(worker_count_)),
      state_(buckets_.bucket_count()) {
  CHECK_GE(transport_.world_size(), 2);
  const std::vector<Contributor> contributors = ContributorsOf(DealLeavesEvenly(options_.micro_batches, worker_count_));
  CHECK_EQ(options_.arrays.gradients.size(), contributors.size());
  if (options_.micro_batches > 0) {
    for (const Contributor& one : contributors) leaves_.push_back(one.leaves.size());
  }
  CHECK_LE(buckets_.element_count(), std::ssize(options_.arrays.parameters));
  counters_.shared_memory = true;
}

// The others read it when they have seen this rank's arrival, which comes with the last node.
void MemoryMachine::SubmitNode(int64_t /*step*/, int bucket, int node, std::span<const float> gradient) {
  const ElementRange range = buckets_.bucket(bucket);
  CHECK_EQ(gradient.size(), range.size());
  const std::span<float> place = options_.arrays.own_gradients[node].subspan(range.begin, range.size());
  if (gradient.data() == place.data()) return;
  CHECK(options_.owner == nullptr || options_.owner->own_parameters().empty())
      << "a gradient at another place of a GPU";
  CopyArray(gradient, place);
}

void MemoryMachine::Submit(int64_t step, int bucket, std::span<const float> gradient) {
  const ElementRange range = buckets_.bucket(bucket);
  Bucket& state = state_[bucket];
  CHECK(!state.in_flight) << "bucket " << bucket << " submitted twice without Await";
  SubmitNode(step, bucket, static_cast<int>(options_.arrays.own_gradients.size()) - 1, gradient);
  state.in_flight = true;
  state.step = step;
  ++state.submit_count;
  if (options_.track != nullptr) state.submitted_ns = TraceNow();
  submitted_.push_back({.step = step, .bucket = bucket});
  const ElementRange slice = SliceOf(bucket);
  state.updated_end = slice.begin;
  // An owner answers the other workers, and needs no message for its own contribution.
  const int64_t answers = slice.size() * (worker_count_ - 1);
  const int64_t bytes = (range.size() - slice.size() + answers) * static_cast<int64_t>(sizeof(float));
  counters_.bytes_sent += bytes;
  counters_.bytes_received += bytes;

  const int64_t all_arrived = state.submit_count * worker_count_;
  // Only the last arrival lets the owners begin, so no other one wakes them.
  if (board_.Arrive(bucket) == all_arrived) RingOwners(bucket);
  if (slice.size() > 0) {
    transport_.PostWait(board_.arrivals(bucket), all_arrived, TokenOf(this, bucket, kArrivals));
  }
  transport_.PostWait(board_.updates(bucket), state.submit_count * owners_.OwnersOf(buckets_.sum(bucket)),
                      TokenOf(this, bucket, kUpdates));
}

ElementRange MemoryMachine::SliceOf(int bucket) const {
  return options_.server_count > 0 ? ElementRange{} : owners_.RangeOf(buckets_.sum(bucket), rank_);
}

void MemoryMachine::RingOwners(int bucket) {
  const int first = options_.server_count > 0 ? worker_count_ : 0;
  for (int owner = 0; owner < owners_.owner_count(); ++owner) {
    if (first + owner != rank_ && owners_.RangeOf(buckets_.sum(bucket), owner).size() > 0) board_.Ring(first + owner);
  }
}

void MemoryMachine::OnCompletion(uint64_t operation) {
  const int bucket = static_cast<int>(operation >> 2);
  // A process that writes wrong counts on the board must not end this one.
  if (!state_[bucket].in_flight) return;
  switch (operation & 3) {
    case kArrivals:
      return BeginUpdate(bucket);
    case kOwner:
      return EndUpdate(bucket);
    default:
      return FinishBucket(bucket);
  }
}

void MemoryMachine::BeginUpdate(int bucket) {
  Bucket& state = state_[bucket];
  // An owner that does not work by itself has done nothing, each time that it is asked.
  const int64_t number = options_.owner->BeginUpdateFromAll(state.step, bucket);
  if (number == 0) return UpdatePiece(bucket);
  state.update_began_ns = TraceNow();
  transport_.PostWait(*options_.owner->finished(), number, TokenOf(this, bucket, kOwner));
}

void MemoryMachine::EndUpdate(int bucket) {
  const Bucket& state = state_[bucket];
  counters_.optimizer_seconds += static_cast<double>(TraceNow() - state.update_began_ns) * 1e-9;
  AddFlight(options_.track, "apply", state.update_began_ns, {.step = state.step, .bucket = bucket});
  FinishUpdate(bucket);
}

void MemoryMachine::UpdatePiece(int bucket) {
  Bucket& state = state_[bucket];
  const ElementRange slice = SliceOf(bucket);
  const TraceSpan span(options_.track, "apply", {.step = state.step, .bucket = bucket});
  const auto start = std::chrono::steady_clock::now();
  const int64_t begin = state.updated_end;
  state.updated_end = std::min(begin + options_.update_threads * kPieceElements, slice.end);
  const int64_t parts = (state.updated_end - begin + kPieceElements - 1) / kPieceElements;
  const auto update = [&](int64_t part) {
    const int64_t part_begin = begin + part * kPieceElements;
    UpdateRange(state, bucket, {part_begin, std::min(part_begin + kPieceElements, state.updated_end)});
  };
  if (parts == 1) {
    // OpenMP takes a microsecond to begin and end a team, even of one thread: as long as a short piece.
    update(0);
  } else {
#pragma omp parallel for num_threads(options_.update_threads)
    for (int64_t part = 0; part < parts; ++part) update(part);
  }
  counters_.optimizer_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (state.updated_end == slice.end) return FinishUpdate(bucket);
  // The arrivals are complete, so the next Poll returns this one, after other operations that have completed.
  transport_.PostWait(board_.arrivals(bucket), state.submit_count * worker_count_, TokenOf(this, bucket, kArrivals));
}

void MemoryMachine::UpdateRange(const Bucket& state, int bucket, ElementRange range) {
  absl::InlinedVector<const std::byte*, 16> terms(options_.arrays.gradients.size());  // of a sum, in its order
  ForEachRun(range, buckets_.element_count(), {.order = options_.sum_order, .world_size = worker_count_},
             [&](ElementRange run, int first_rank) {
               UpdateRun(state, bucket, run, first_rank, std::span(terms.data(), terms.size()));
             });
}

// A pass over memory in pieces whose sum stays in the L1 cache, where the optimizer reads it. The last contribution of
// a chain is added by the optimizer itself; so two ranks, whose chain and tree are alike, need no sum of their own.
void MemoryMachine::UpdateRun(const Bucket& state, int bucket, ElementRange run, int first_rank,
                              std::span<const std::byte*> terms) {
  alignas(64) float sum[OwnedSlices::kPassElements];
  const int contributor_count = static_cast<int>(terms.size());
  const bool is_tree = options_.sum_order == SumOrder::kTree && contributor_count > 2;
  const int term_count = is_tree ? contributor_count : contributor_count - 1;
  const int64_t pass = contributor_count == 2 ? run.size() : OwnedSlices::kPassElements;
  const int last_rank = (first_rank + contributor_count - 1) % contributor_count;
  for (int64_t begin = run.begin; begin < run.end; begin += pass) {
    const ElementRange range = {begin, std::min(begin + pass, run.end)};
    std::span<const float> partial = Contribution(first_rank, range);
    if (contributor_count > 2) {
      for (int i = 0; i < term_count; ++i) {
        terms[i] = std::as_bytes(Contribution((first_rank + i) % contributor_count, range)).data();
      }
      const std::span<float> out(sum, range.size());
      const std::span<const std::byte* const> added = terms.first(term_count);
      if (is_tree) {
        SumAsTree(added, out, BestInstructionSet(), leaves_);
      } else {
        SumInOrder(added, out);
      }
      partial = out;
    }
    options_.owner->Apply({.step = state.step,
                           .bucket = bucket,
                           .range = range,
                           .sum = partial,
                           .last = is_tree ? std::span<const float>() : Contribution(last_rank, range),
                           .parameters = options_.arrays.parameters.subspan(range.begin, range.size())});
  }
}

void MemoryMachine::FinishUpdate(int bucket) {
  if (board_.Update(bucket) < state_[bucket].submit_count * owners_.OwnersOf(buckets_.sum(bucket))) return;
  for (int rank = 0; rank < worker_count_; ++rank) {
    if (rank != rank_) board_.Ring(rank);
  }
}

void MemoryMachine::FinishBucket(int bucket) {
  Bucket& state = state_[bucket];
  AddFlight(options_.track, "exchange", state.submitted_ns, {.step = state.step, .bucket = bucket});
  // Buckets may be ready in another order than they were submitted in.
  submitted_.erase(std::ranges::find(submitted_, bucket, &InFlight::bucket));
  state.in_flight = false;
}

BucketMachine::InFlight MemoryMachine::Oldest() const {
  CHECK(!submitted_.empty());
  return submitted_.front();
}

}  // namespace starring
