#include "common/reduce/arrays/reduce_ring.h"

#include "common/base/check.h"
#include "common/reduce/arrays/element_sum.h"

namespace starring {

ReduceRing::ReduceRing(const Options& options) : ReduceMachine(options.transport) {
  if (worker_count() == 1) return;
  ring_.emplace(Ring::Options{.transport = options.transport,
                              .sink = this,
                              .first_tag = kFirstElementTag,
                              // A rank has one array, in which its result replaces its contribution.
                              .results_are_apart = false,
                              .own = options.own,
                              .right = options.right});
}

void ReduceRing::Start(const Reduction& reduction) {
  // A sum of no elements is complete when its heads are.
  if (reduction.head.count == 0) return;
  Expect(reduction.number, 1);
  ring_->Submit({.number = reduction.number,
                 .elements = {0, reduction.head.count},
                 .result_bytes = ElementBytes(reduction.head.type),
                 .tag_key = HashOf(reduction.head),
                 .labels = {.step = reduction.head.step, .bucket = reduction.head.bucket}});
}

void ReduceRing::Advance(uint64_t /*operation*/) { CHECK(false) << "the ring posts its operations itself"; }

std::span<const float> ReduceRing::Contribution(const RingSum& sum, ElementRange range) {
  // Partial sums are float32, so elements of 16 bits cannot leave from where they are.
  if (InFlightOf(sum.number).head.type != ElementType::kFloat32) return {};
  const std::span<std::byte> own = Result(sum, range);
  return {reinterpret_cast<const float*>(own.data()), static_cast<size_t>(range.size())};
}

void ReduceRing::CopyContribution(const RingSum& sum, ElementRange range, std::span<float> out) {
  Widen(InFlightOf(sum.number).head.type, Result(sum, range).data(), out);
}

void ReduceRing::Add(const RingSum& sum, ElementRange range, std::span<float> partial) {
  AddElements(InFlightOf(sum.number).head.type, Result(sum, range).data(), partial);
}

void ReduceRing::Finish(const RingSum& sum, ElementRange range, std::span<float> partial) {
  // The own contribution is the last one of the chain (ring.h).
  Add(sum, range, partial);
  starring::Finish(InFlightOf(sum.number).head.result(), partial, Result(sum, range).data());
}

std::span<std::byte> ReduceRing::Result(const RingSum& sum, ElementRange range) {
  std::byte* const data = InFlightOf(sum.number).data;
  return {data + range.begin * sum.result_bytes, static_cast<size_t>(range.size() * sum.result_bytes)};
}

void ReduceRing::OnDone(const RingSum& sum) { ReduceMachine::Complete(sum.number); }

}  // namespace starring
