// A ring's reduce-scatter, optimizer and allgather as one pipeline over groups of reduction blocks.
//
// Words: block_machine.h's, and these. Every rank sends to its right neighbour (rank + 1) and receives from its left
// one. A *hop* is a round: one message of one chunk.
//
//   reduce   Chunk c starts at rank c + 1 with that rank's gradient and travels right. Each rank that receives the
//            partial sum adds its own gradient and passes the sum on. N - 1 hops bring it to rank c: contributions
//            c + 1, c + 2, ..., c are added left to right, which is the order that reduction_order.h states.
//   apply    Rank c adds its own gradient, the last one, and applies the optimizer in the same pass over memory.
//   gather   The new parameters of chunk c travel right from rank c, N - 1 hops.
//
// Rank r receives in reduce hop h chunk r - 2 - h (and sends r - 1 - h), in gather hop h chunk r - 1 - h (and sends
// r - h), all modulo N. Reduce hop 0 sends from the gradient. The other hops send from the place where the partial sum
// was received: the chunk's place in the parameter vector, because only the owner still needs the chunk's old
// parameters. The sum of the owned chunk is received in a scratch buffer. So no byte is copied on our side, unless a
// group has several blocks: then gradients of one chunk, and the new parameters, are copied once.
//
// Cost per group of L elements: every rank sends and receives 2 (N - 1) messages, together 2 L (N - 1) / N elements,
// which is the least an allreduce can do (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009), and adds L (N - 1) / N elements. 2 (N - 1) messages follow one after the other.
//
// There is no deadlock inside a group: a hop needs the hop before it at the left neighbour, and nothing else.
#ifndef STARRING_WORKER_EXCHANGE_PEER_RING_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_RING_MACHINE_H_

#include "worker/exchange/peer/block_machine.h"

namespace starring {

class RingMachine final : public BlockMachine {
 public:
  // All pointers outlive the machine.
  explicit RingMachine(const Options& options);

 private:
  void StartGroup(Group& group) override;
  void Advance(Group& group, Operation operation) override;
  int PeerOf(Operation operation) const override;

  void OnReduceReceived(Group& group, int hop);
  void OnGatherReceived(Group& group, int hop);
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_RING_MACHINE_H_
