#include "worker/exchange/peer/direct_machine.h"

#include <algorithm>

#include "common/arithmetic/reduction_order.h"
#include "common/layout.h"
#include "common/limits.h"

namespace starring {
namespace {

// Places begin at cache lines, which is what the loops that add like best.
constexpr int64_t kLineElements = Layout::kAlignmentElements;
constexpr int64_t kWindowElements = kDirectWindowBytes / static_cast<int64_t>(sizeof(float));
static_assert(kChunkElements % kLineElements == 0 && kWindowElements >= 2 * kChunkElements);

// Places that are not free when all contributions that have come are added: in a chain that of the sum, and in a tree
// those of the sums that wait for their sibling.
int HeldMax(SumOrder order, const Transport& transport) {
  if (order == SumOrder::kChain || transport.world_size() == 1) return 1;
  return TreePlaces::HeldMax({.rank = transport.rank(), .world_size = transport.world_size()});
}

// No contribution needs more than a place, so two ranks need one and three need two.
int64_t ScratchElements(int held_max, int world_size) {
  return std::min<int64_t>(held_max * kChunkElements + kWindowElements, std::max(1, world_size - 1) * kChunkElements);
}

}  // namespace

DirectMachine::DirectMachine(const Options& options, SumOrder order)
    : BlockMachine(options, {.blocks_in_flight_max = RingBlocksInFlightMax(options.transport->world_size()),
                             .scratch_elements =
                                 ScratchElements(HeldMax(order, *options.transport), options.transport->world_size()),
                             // Every contribution is sent from the gradient.
                             .gradient_sends = options.transport->world_size() - 1}),
      held_max_(HeldMax(order, *options.transport)),
      progress_(slot_count()) {
  for (Progress& progress : progress_) {
    progress.arrived.resize(round_count());
    progress.place_of.resize(round_count());
    if (order == SumOrder::kTree && world_size() > 1) {
      progress.tree.emplace(TreePlaces::Options{.rank = rank(), .world_size = world_size()});
    }
  }
}

int DirectMachine::PeerOf(Operation operation) const {
  const bool peer_owns_the_chunk = operation.phase == Phase::kReduceSend || operation.phase == Phase::kGatherReceive;
  return peer_owns_the_chunk ? Left(operation.round + 1) : Right(operation.round + 1);
}

void DirectMachine::StartBlock(Block& block) {
  Progress& progress = progress_[block.slot];
  const int64_t longest_chunk = (block.range.size() + world_size() - 1) / world_size();
  progress.place_elements = (longest_chunk + kLineElements - 1) / kLineElements * kLineElements;
  progress.window = static_cast<int>(std::min<int64_t>(kWindowElements / progress.place_elements, 2 * round_count()));
  progress.place_count = std::min(held_max_ + progress.window, round_count());
  if (progress.tree.has_value()) progress.tree->Begin(progress.place_count);
  progress.sends_posted = progress.sends_done = progress.receives_posted = progress.added_count = 0;
  progress.arrived.assign(progress.arrived.size(), false);
  // Receives come first: a message for which no receive is posted would be copied by MPI, or would wait.
  PostReceives(block, progress);
  PostSends(block, progress);
}

void DirectMachine::Advance(Block& block, Operation operation) {
  Progress& progress = progress_[block.slot];
  switch (operation.phase) {
    case Phase::kReduceSend:
    case Phase::kGatherSend:
      ++progress.sends_done;
      PostSends(block, progress);
      break;
    case Phase::kReduceReceive:
      OnContribution(block, progress, operation.round);
      break;
    case Phase::kGatherReceive:
      break;
  }
}

void DirectMachine::PostSends(Block& block, Progress& progress) {
  // There is an answer only after all contributions are in the sum.
  const int postable = progress.added_count == round_count() ? 2 * round_count() : round_count();
  while (progress.sends_posted < postable && progress.sends_posted - progress.sends_done < progress.window) {
    const int round = progress.sends_posted++ % round_count();
    if (progress.sends_posted <= round_count()) {
      const Operation contribution = {.phase = Phase::kReduceSend, .round = round};
      const ElementRange chunk = Chunk(block, PeerOf(contribution));
      Receive(block, {.phase = Phase::kGatherReceive, .round = round}, Parameters(chunk));
      Send(block, contribution, Gradient(block, chunk));
    } else {
      Send(block, {.phase = Phase::kGatherSend, .round = round}, Parameters(Chunk(block, rank())));
    }
  }
}

void DirectMachine::PostReceives(Block& block, Progress& progress) {
  // Of a chain, a place but the sum's is free again when its contribution has been added. Of a tree, at most held_max_
  // places are not.
  const bool is_chain = !progress.tree.has_value();
  const int others = progress.place_count - 1;
  const int postable = is_chain ? std::max(1, progress.added_count) + others : progress.added_count + progress.window;
  while (progress.receives_posted < std::min(round_count(), postable)) {
    const int round = progress.receives_posted++;
    int& place = progress.place_of[round];
    if (is_chain) {
      place = round == 0 ? 0 : 1 + (round - 1) % others;
    } else {
      place = progress.tree->Take();
    }
    Receive(block, {.phase = Phase::kReduceReceive, .round = round}, Place(block, progress, place));
  }
}

void DirectMachine::OnContribution(Block& block, Progress& progress, int round) {
  progress.arrived[round] = true;
  while (progress.added_count < round_count() && progress.arrived[progress.added_count]) {
    AddContribution(block, progress, progress.added_count++);
  }
  PostReceives(block, progress);
  if (progress.added_count < round_count()) return;
  ApplyOwnChunk(block, PartsOf(block, progress));
  PostSends(block, progress);
}

void DirectMachine::AddContribution(Block& block, Progress& progress, int round) {
  const int place = progress.place_of[round];
  if (!progress.tree.has_value()) {
    if (round > 0) Add(block, Place(block, progress, place), Place(block, progress, 0));
    return;
  }
  progress.tree->Put(Right(round + 1), place, [&](int from, int into) {
    const std::span<const float> data =
        from == TreePlaces::kOwn ? OwnContribution(block) : Place(block, progress, from);
    Add(block, data, Place(block, progress, into));
  });
}

DirectMachine::Parts DirectMachine::PartsOf(const Block& block, const Progress& progress) const {
  if (!progress.tree.has_value()) return {.sum = Place(block, progress, 0), .last = OwnContribution(block)};
  const TreePlaces::Halves halves = progress.tree->halves();
  return {.sum = Place(block, progress, halves.sum),
          .last = halves.last == TreePlaces::kOwn ? OwnContribution(block) : Place(block, progress, halves.last)};
}

std::span<float> DirectMachine::Place(const Block& block, const Progress& progress, int place) const {
  return block.scratch.subspan(place * progress.place_elements, Chunk(block, rank()).size());
}

}  // namespace starring
