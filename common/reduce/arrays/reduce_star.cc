#include "common/reduce/arrays/reduce_star.h"

#include "common/base/check.h"
#include "common/reduce/arrays/element_sum.h"

namespace starring {
namespace {

constexpr uint64_t kNumberFactor = 0x9e3779b97f4a7c15;  // odd, with ones and zeros everywhere

}  // namespace

Star::Options StarOptionsOf(const ReduceStarOptions& options, StarSink* sink) {
  const int worker_count = options.transport->world_size() - options.server_count;
  const int64_t message_bytes = ReduceStarMessageBytes(worker_count);
  Star::Options star = {.transport = options.transport,
                        .sink = sink,
                        .server_count = options.server_count,
                        .first_tag = ReduceMachine::kFirstElementTag,
                        .contributors = OneOfEachRank(worker_count),
                        .message_bytes_max = message_bytes,
                        .sizes = {.piece_bytes_max = message_bytes},
                        .slot_count = kReduceStarSlots,
                        // Without a window an owner that is slow holds up its own pieces alone.
                        .window_bytes = 0,
                        .owners_have_results = options.server_count == 0,
                        // No two reductions have the same number, so no result waits until an earlier one has left.
                        .results_are_replaced = false,
                        .memory = {},
                        .shared = {},
                        .is_shared = options.is_shared};
  const int64_t place_bytes = StarMemory::PlaceBytes(message_bytes);
  if (!options.memory.empty()) star.memory.emplace(options.memory, kReduceStarSlots, place_bytes);
  for (const std::span<std::byte> memory : options.shared) {
    star.shared.emplace_back(memory, kReduceStarSlots, place_bytes);
  }
  return star;
}

StarSum StarSumOf(const Reduction& reduction, int owner_count) {
  const ReductionHead& head = reduction.head;
  const int64_t element_bytes = ElementBytes(head.type);
  return {.number = reduction.number,
          .elements = {0, head.count},
          .owners = OwnerMap::Ranges(owner_count, element_bytes),
          .element_bytes = element_bytes,
          // A slot's messages follow each other, but not those of two slots. So with the head alone, ranks that begin
          // two sums in different orders would add pieces of one to other pieces of it.
          .tag_key = HashOf(head) ^ static_cast<uint64_t>(reduction.number) * kNumberFactor,
          .labels = {.step = head.step, .bucket = head.bucket}};
}

ReduceStar::ReduceStar(const ReduceStarOptions& options)
    : ReduceMachine(options.transport, options.server_count),
      owner_count_(server_count() > 0 ? server_count() : worker_count()) {
  if (options.transport->world_size() > 1) star_.emplace(StarOptionsOf(options, this));
}

void ReduceStar::Start(const Reduction& reduction) {
  if (reduction.head.count == 0) return;
  Expect(reduction.number, 1);
  star_->Submit(StarSumOf(reduction, owner_count_));
}

void ReduceStar::Advance(uint64_t /*operation*/) { CHECK(false) << "the star posts its operations itself"; }

std::span<const std::byte> ReduceStar::Contribution(const StarSum& sum, int /*node*/, ElementRange range) {
  // The sum takes the place of the contribution in the caller's array.
  return Result(sum, range);
}

std::span<std::byte> ReduceStar::Result(const StarSum& sum, ElementRange range) {
  std::byte* const data = InFlightOf(sum.number).data;
  return {data + range.begin * sum.element_bytes, static_cast<size_t>(range.size() * sum.element_bytes)};
}

StarSink::Finished ReduceStar::FinishAll(const StarSum& sum, const Output& output,
                                         std::span<std::byte* const> contributions) {
  const SumResult result = InFlightOf(sum.number).head.result();
  SumContributions(contributions, output.range.size(), result, output.record.data());
  CopyToAnswer(output);
  return Finished::kNow;
}

}  // namespace starring
