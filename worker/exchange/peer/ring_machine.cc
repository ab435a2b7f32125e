#include "worker/exchange/peer/ring_machine.h"

#include <span>

#include "common/arithmetic/reduction_order.h"
#include "common/limits.h"

namespace starring {

RingMachine::RingMachine(const Options& options)
    : BlockMachine(options, {.blocks_in_flight_max = RingBlocksInFlightMax(options.transport->world_size()),
                             .scratch_elements = kChunkElements,
                             // The other hops send a partial sum.
                             .gradient_sends = 1}) {}

int RingMachine::PeerOf(Operation operation) const {
  const bool sends = operation.phase == Phase::kReduceSend || operation.phase == Phase::kGatherSend;
  return sends ? Right(1) : Left(1);
}

void RingMachine::StartBlock(Block& block) {
  const int hops = round_count();
  // All receives of partial sums are posted before the first send. A message for which no receive is posted would be
  // copied by MPI, or would wait.
  for (int hop = 0; hop < hops; ++hop) {
    const ElementRange range = Chunk(block, Left(2 + hop));
    const bool owned = hop == hops - 1;
    Receive(block, {.phase = Phase::kReduceReceive, .round = hop},
            owned ? block.scratch.first(range.size()) : Parameters(range));
  }
  const ElementRange first = Chunk(block, Left(1));
  Send(block, {.phase = Phase::kReduceSend, .round = 0}, Gradient(block, first));
  // No partial sum passes through this chunk's place in the parameter vector, because its reduction starts here. So its
  // new parameters may arrive at any time.
  Receive(block, {.phase = Phase::kGatherReceive, .round = 0}, Parameters(first));
}

void RingMachine::Advance(Block& block, Operation operation) {
  const int hop = operation.round;
  switch (operation.phase) {
    case Phase::kReduceSend:
      // The new parameters overwrite the partial sum, so their receive must not be posted before the sum has been sent.
      if (hop > 0) {
        Receive(block, {.phase = Phase::kGatherReceive, .round = hop}, Parameters(Chunk(block, Left(1 + hop))));
      }
      break;
    case Phase::kReduceReceive:
      OnReduceReceived(block, hop);
      break;
    case Phase::kGatherSend:
      break;
    case Phase::kGatherReceive:
      OnGatherReceived(block, hop);
      break;
  }
}

void RingMachine::OnReduceReceived(Block& block, int hop) {
  const ElementRange range = Chunk(block, Left(2 + hop));
  // After N - 1 hops the chunk is this rank's own, since Left(N) is the rank itself.
  if (hop < round_count() - 1) {
    // Add has ended when it returns, so MPI may read the sum from its place. Nothing is received there until the send
    // has completed (Advance).
    Add(block, Gradient(block, range), Parameters(range));
    Send(block, {.phase = Phase::kReduceSend, .round = hop + 1}, Parameters(range));
    return;
  }
  ApplyOwnChunk(block, {.sum = block.scratch.first(range.size()), .last = OwnContribution(block)});
  Send(block, {.phase = Phase::kGatherSend, .round = 0}, Parameters(range));
}

void RingMachine::OnGatherReceived(Block& block, int hop) {
  // The right neighbour owns the chunk of the last hop and has its parameters already.
  if (hop == round_count() - 1) return;
  Send(block, {.phase = Phase::kGatherSend, .round = hop + 1}, Parameters(Chunk(block, Left(1 + hop))));
}

}  // namespace starring
