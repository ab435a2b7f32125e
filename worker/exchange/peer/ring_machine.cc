#include "worker/exchange/peer/ring_machine.h"

#include <span>

#include "common/base/limits.h"

namespace starring {

RingMachine::RingMachine(const Options& options)
    : BlockMachine(options, {.groups_in_flight_max = RingBlocksInFlightMax(options.transport->world_size()),
                             .scratch_elements = MessageElementsMax(options),
                             // The other hops send a partial sum.
                             .gradient_sends = 1}) {}

int RingMachine::PeerOf(Operation operation) const {
  const bool sends = operation.phase == Phase::kReduceSend || operation.phase == Phase::kGatherSend;
  return sends ? Right(1) : Left(1);
}

void RingMachine::StartGroup(Group& group) {
  const int hops = round_count();
  // All receives of partial sums are posted before the first send. A message for which no receive is posted would be
  // copied by MPI, or would wait.
  for (int hop = 0; hop < hops; ++hop) {
    const int chunk = Left(2 + hop);
    const bool owned = hop == hops - 1;
    Receive(group, {.phase = Phase::kReduceReceive, .round = hop},
            owned ? group.scratch.first(ChunkSize(group, chunk)) : Landing(group, chunk));
  }
  const int first = Left(1);
  Send(group, {.phase = Phase::kReduceSend, .round = 0}, Contribution(group, first));
  // No partial sum passes through this chunk's place in the parameter vector, because its reduction starts here. So its
  // new parameters may arrive at any time, unless the gradient is sent from that place.
  if (!group.is_packed) Receive(group, {.phase = Phase::kGatherReceive, .round = 0}, Landing(group, first));
}

void RingMachine::Advance(Group& group, Operation operation) {
  const int hop = operation.round;
  switch (operation.phase) {
    case Phase::kReduceSend:
      // The new parameters overwrite what was sent, so their receive must not be posted before it has been sent.
      if (hop > 0 || group.is_packed) {
        Receive(group, {.phase = Phase::kGatherReceive, .round = hop}, Landing(group, Left(1 + hop)));
      }
      break;
    case Phase::kReduceReceive:
      OnReduceReceived(group, hop);
      break;
    case Phase::kGatherSend:
      break;
    case Phase::kGatherReceive:
      OnGatherReceived(group, hop);
      break;
  }
}

void RingMachine::OnReduceReceived(Group& group, int hop) {
  const int chunk = Left(2 + hop);
  const std::span<float> landing = Landing(group, chunk);
  // After N - 1 hops the chunk is this rank's own, since Left(N) is the rank itself.
  if (hop < round_count() - 1) {
    // AddContribution has ended when it returns, so MPI may read the sum from its place. Nothing is received there
    // until the send has completed (Advance).
    AddContribution(group, chunk, landing);
    Send(group, {.phase = Phase::kReduceSend, .round = hop + 1}, landing);
    return;
  }
  ApplyOwnChunk(group, {.sum = group.scratch.first(landing.size()), .last = {}});
  Send(group, {.phase = Phase::kGatherSend, .round = 0}, landing);
}

void RingMachine::OnGatherReceived(Group& group, int hop) {
  const int chunk = Left(1 + hop);
  // The right neighbour owns the chunk of the last hop and has its parameters already.
  if (hop < round_count() - 1) Send(group, {.phase = Phase::kGatherSend, .round = hop + 1}, Landing(group, chunk));
  TakeParameters(group, chunk);
}

}  // namespace starring
