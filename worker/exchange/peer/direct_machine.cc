#include "worker/exchange/peer/direct_machine.h"

#include <algorithm>

#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "common/job/layout.h"

namespace starring {
namespace {

// Places begin at cache lines, because the loops that add are fastest there.
constexpr int64_t kLineElements = Layout::kAlignmentElements;
constexpr int64_t kWindowElements = kDirectWindowBytes / static_cast<int64_t>(sizeof(float));
static_assert(kChunkElementsMax % kLineElements == 0 && kWindowElements >= 2 * kChunkElementsMax);

// Places still occupied after adding all arrivals: the sum's in a chain, the waiting partial sums' in a tree.
int HeldMax(SumOrder order, const Transport& transport) {
  if (order == SumOrder::kChain || transport.world_size() == 1) return 1;
  return TreePlaces::HeldMax({.rank = transport.rank(), .world_size = transport.world_size()});
}

int64_t RoundedToLines(int64_t elements) { return (elements + kLineElements - 1) / kLineElements * kLineElements; }

bool HasFewOwners(const BucketMap& buckets) {
  return OwnerMap::JoinedChunks(buckets.world_size()).OwnersOfBlock(buckets.last_block()) < buckets.world_size();
}

}  // namespace

DirectMachine::DirectMachine(const Options& options, SumOrder order)
    : BlockMachine(options, {.scratch_elements = ScratchElements(options, order),
                             .last_block_is_apart = HasFewOwners(*options.buckets)}),
      owners_(OwnerMap::JoinedChunks(world_size())),
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

int64_t DirectMachine::ScratchElements(const Options& options, SumOrder order) {
  const Transport& transport = *options.transport;
  const int64_t others = std::max(1, transport.world_size() - 1);
  const int64_t message_elements = MessageElementsMax(options);
  // No contribution needs more than a place, so two ranks need one and three need two.
  const int64_t usual =
      std::min(HeldMax(order, transport) * message_elements + kWindowElements, others * message_elements);
  // Few owners have a place for each contribution.
  if (!HasFewOwners(*options.buckets)) return usual;
  const ElementRange last =
      OwnerMap::JoinedChunks(transport.world_size()).SliceOfBlock(options.buckets->last_block(), transport.rank());
  return std::max(usual, others * RoundedToLines(last.size()));
}

int DirectMachine::PeerOf(Operation operation) const {
  const bool peer_owns_the_chunk = operation.phase == Phase::kReduceSend || operation.phase == Phase::kGatherReceive;
  return peer_owns_the_chunk ? Left(operation.round + 1) : Right(operation.round + 1);
}

void DirectMachine::StartGroup(Group& group) {
  Progress& progress = progress_[group.slot];
  if (IsApart(group)) return StartFew(group, progress);
  const int64_t longest_chunk = (group.range.size() + world_size() - 1) / world_size();
  progress.place_elements = RoundedToLines(longest_chunk);
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
  if (IsApart(group)) {
    if (operation.phase == Phase::kReduceReceive) OnFewContribution(group, progress);
    return;
  }
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
  // In a chain, every place except the sum's is freed once its contribution is added. In a tree, at most held_max_
  // places stay occupied.
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

void DirectMachine::StartFew(Group& group, Progress& progress) {
  const int64_t mine = LastSliceOf(rank()).size();
  progress.place_elements = RoundedToLines(mine);
  progress.added_count = 0;
  if (progress.tree.has_value()) progress.tree->Begin(round_count());
  // Counts the operations that are posted here, and those that an owner posts later: an answer to each rank.
  const int owned_rounds = mine > 0 ? round_count() : 0;
  group.before_ready = owned_rounds;
  for (int round = 0; round < round_count(); ++round) {
    if (OwnerSlice(round).size() > 0) group.before_ready += 2;
  }
  group.before_free = group.before_ready + owned_rounds;
  for (int round = 0; round < owned_rounds; ++round) {
    progress.place_of[round] = progress.tree.has_value() ? progress.tree->Take() : round;
    Receive(group, {.phase = Phase::kReduceReceive, .round = round},
            FewPlace(group, progress, progress.place_of[round]));
  }
  // The block is short, so all its messages travel at once.
  for (int round = 0; round < round_count(); ++round) {
    const ElementRange slice = OwnerSlice(round);
    if (slice.size() == 0) continue;
    Receive(group, {.phase = Phase::kGatherReceive, .round = round}, Parameters(slice));
    Send(group, {.phase = Phase::kReduceSend, .round = round}, Gradient(group, slice));
  }
}

void DirectMachine::OnFewContribution(Group& group, Progress& progress) {
  if (++progress.added_count < round_count()) return;
  if (progress.tree.has_value()) {
    ApplyFewAsTree(group, progress);
  } else {
    const OwnerMap::ChunkRun chunks = owners_.ChunksOf(buckets().last_block(), rank());
    for (int chunk = chunks.begin; chunk < chunks.end; ++chunk) ApplyFewInChain(group, progress, chunk);
  }
  for (int round = 0; round < round_count(); ++round) {
    Send(group, {.phase = Phase::kGatherSend, .round = round}, Parameters(LastSliceOf(rank())));
  }
}

void DirectMachine::ApplyFewAsTree(const Group& group, Progress& progress) {
  const ElementRange slice = LastSliceOf(rank());
  const auto add = [&](int from, int into) {
    const std::span<const float> data =
        from == TreePlaces::kOwn ? Gradient(group, slice) : FewPlace(group, progress, from);
    Add(group, data, FewPlace(group, progress, into));
  };
  for (int round = 0; round < round_count(); ++round) {
    progress.tree->Put(Right(round + 1), progress.place_of[round], add);
  }
  const TreePlaces::Halves halves = progress.tree->halves();
  add(halves.last, halves.sum);
  ApplySum(group, slice, FewPlace(group, progress, halves.sum));
}

void DirectMachine::ApplyFewInChain(const Group& group, const Progress& progress, int chunk) {
  const ElementRange range = RingChunk(group.range, chunk, world_size());
  if (range.size() == 0) return;
  const int64_t begin_at = range.begin - LastSliceOf(rank()).begin;
  const auto place_of = [&](int from) {
    const int round = (from - rank() - 1 + world_size()) % world_size();
    return FewPlace(group, progress, round).subspan(begin_at, range.size());
  };
  const auto rank_at = [&](int position) { return (FirstRank(chunk, world_size()) + position) % world_size(); };
  // The sum begins where the first contribution is. The own one is not there, but in the gradient; a + b = b + a, so it
  // can be added to the second.
  const bool begins_with_own = rank_at(0) == rank();
  const std::span<float> sum = place_of(rank_at(begins_with_own ? 1 : 0));
  if (begins_with_own) Add(group, Gradient(group, range), sum);
  for (int position = begins_with_own ? 2 : 1; position < world_size(); ++position) {
    const int from = rank_at(position);
    if (from == rank()) {
      Add(group, Gradient(group, range), sum);
    } else {
      Add(group, place_of(from), sum);
    }
  }
  ApplySum(group, range, sum);
}

std::span<float> DirectMachine::FewPlace(const Group& group, const Progress& progress, int place) const {
  return group.scratch.subspan(place * progress.place_elements, LastSliceOf(rank()).size());
}

ElementRange DirectMachine::OwnerSlice(int round) const {
  return LastSliceOf(PeerOf({.phase = Phase::kReduceSend, .round = round}));
}

}  // namespace starring
