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
static_assert(kChunkElementsMax % kLineElements == 0 && kWindowElements >= 2 * kChunkElementsMax);

// Places that are not free when all contributions that have come are added: in a chain that of the sum, and in a tree
// those of the sums that wait for their sibling.
int HeldMax(SumOrder order, const Transport& transport) {
  if (order == SumOrder::kChain || transport.world_size() == 1) return 1;
  return TreePlaces::HeldMax({.rank = transport.rank(), .world_size = transport.world_size()});
}

// No contribution needs more than a place, so two ranks need one and three need two.
int64_t ScratchElements(int held_max, int world_size, int64_t message_elements) {
  return std::min(held_max * message_elements + kWindowElements, std::max(1, world_size - 1) * message_elements);
}

}  // namespace

DirectMachine::DirectMachine(const Options& options, SumOrder order)
    : BlockMachine(options,
                   {.groups_in_flight_max = RingBlocksInFlightMax(options.transport->world_size()),
                    .scratch_elements = ScratchElements(HeldMax(order, *options.transport),
                                                        options.transport->world_size(), MessageElementsMax(options)),
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

void DirectMachine::StartGroup(Group& group) {
  Progress& progress = progress_[group.slot];
  const int64_t longest_chunk = (group.range.size() + world_size() - 1) / world_size();
  progress.place_elements = (longest_chunk + kLineElements - 1) / kLineElements * kLineElements;
  progress.window = static_cast<int>(std::min<int64_t>(kWindowElements / progress.place_elements, 2 * round_count()));
  progress.place_count = std::min(held_max_ + progress.window, round_count());
  if (progress.tree.has_value()) progress.tree->Begin(progress.place_count);
  progress.sends_posted = progress.sends_done = progress.receives_posted = progress.added_count = 0;
  progress.arrived.assign(progress.arrived.size(), false);
  // Receives come first: a message for which no receive is posted would be copied by MPI, or would wait.
  PostReceives(group, progress);
  PostSends(group, progress);
}

void DirectMachine::Advance(Group& group, Operation operation) {
  Progress& progress = progress_[group.slot];
  switch (operation.phase) {
    case Phase::kReduceSend:
      // The answer arrives where the packed contribution was.
      if (group.is_packed) PostAnswer(group, operation.round);
      [[fallthrough]];
    case Phase::kGatherSend:
      ++progress.sends_done;
      PostSends(group, progress);
      break;
    case Phase::kReduceReceive:
      OnContribution(group, progress, operation.round);
      break;
    case Phase::kGatherReceive:
      TakeParameters(group, PeerOf(operation));
      break;
  }
}

void DirectMachine::PostAnswer(Group& group, int round) {
  const Operation answer = {.phase = Phase::kGatherReceive, .round = round};
  Receive(group, answer, Landing(group, PeerOf(answer)));
}

void DirectMachine::PostSends(Group& group, Progress& progress) {
  // There is an answer only after all contributions are in the sum.
  const int postable = progress.added_count == round_count() ? 2 * round_count() : round_count();
  while (progress.sends_posted < postable && progress.sends_posted - progress.sends_done < progress.window) {
    const int round = progress.sends_posted++ % round_count();
    if (progress.sends_posted <= round_count()) {
      const Operation contribution = {.phase = Phase::kReduceSend, .round = round};
      if (!group.is_packed) PostAnswer(group, round);
      Send(group, contribution, Contribution(group, PeerOf(contribution)));
    } else {
      Send(group, {.phase = Phase::kGatherSend, .round = round}, Landing(group, rank()));
    }
  }
}

void DirectMachine::PostReceives(Group& group, Progress& progress) {
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
    Receive(group, {.phase = Phase::kReduceReceive, .round = round}, Place(group, progress, place));
  }
}

void DirectMachine::OnContribution(Group& group, Progress& progress, int round) {
  progress.arrived[round] = true;
  while (progress.added_count < round_count() && progress.arrived[progress.added_count]) {
    TakeContribution(group, progress, progress.added_count++);
  }
  PostReceives(group, progress);
  if (progress.added_count < round_count()) return;
  ApplyOwnChunk(group, PartsOf(group, progress));
  PostSends(group, progress);
}

void DirectMachine::TakeContribution(Group& group, Progress& progress, int round) {
  const int place = progress.place_of[round];
  if (!progress.tree.has_value()) {
    if (round > 0) Add(group, Place(group, progress, place), Place(group, progress, 0));
    return;
  }
  progress.tree->Put(Right(round + 1), place, [&](int from, int into) {
    const std::span<float> sum = Place(group, progress, into);
    if (from == TreePlaces::kOwn) {
      AddContribution(group, rank(), sum);
    } else {
      Add(group, Place(group, progress, from), sum);
    }
  });
}

DirectMachine::Parts DirectMachine::PartsOf(const Group& group, const Progress& progress) const {
  if (!progress.tree.has_value()) return {.sum = Place(group, progress, 0), .last = {}};
  const TreePlaces::Halves halves = progress.tree->halves();
  Parts parts = {.sum = Place(group, progress, halves.sum), .last = {}};
  if (halves.last != TreePlaces::kOwn) parts.last = Place(group, progress, halves.last);
  return parts;
}

std::span<float> DirectMachine::Place(const Group& group, const Progress& progress, int place) const {
  return group.scratch.subspan(place * progress.place_elements, ChunkSize(group, rank()));
}

}  // namespace starring
