// Sums of the workers' contributions, element by element, in an order that the inputs' order alone decides, and with it
// every bit: left to right (SumInOrder), or as a tree (SumAsTree).
//
// Both add arrays that are contiguous. PieceSum adds messages as the transport delivered them, in pieces, without
// copying them into one array first.
#ifndef STARRING_COMMON_ARITHMETIC_SUM_IN_ORDER_H_
#define STARRING_COMMON_ARITHMETIC_SUM_IN_ORDER_H_

#include <cstddef>
#include <span>
#include <vector>

#include "common/arithmetic/instruction_set.h"
#include "common/arithmetic/reduction_order.h"

namespace starring {

// sum = ((inputs[0] + inputs[1]) + inputs[2]) + ...
// Shapes:      every input: 4 * sum.size() bytes of little-endian float32, on any byte boundary (a received message
//              starts anywhere); sum: (count) float32.
// Writes:      sum is overwritten (=). It may be inputs[0], and otherwise overlaps no input.
// Requires:    at least one input.
// Cost:        one pass over memory: count * (inputs + 1) * 4 bytes moved, inputs - 1 additions each: bandwidth-bound.
// Determinism: bitwise, for any alignment, length and instruction set.
void SumInOrder(std::span<const std::byte* const> inputs, std::span<float> sum,
                InstructionSet set = BestInstructionSet());

// The same sum as a tree over the inputs, as SumOrder::kTree says: the contract is that of SumInOrder. `leaves`: of how
// many leaves each input is the sum already, in the order of the tree; empty: each is a leaf.
// Cost:        as SumInOrder, and the partial sums of a block, which stay in the L1 cache.
void SumAsTree(std::span<const std::byte* const> inputs, std::span<float> sum,
               InstructionSet set = BestInstructionSet(), std::span<const int> leaves = {});

// Adds the contributions of all workers, each a list of byte pieces of any length and alignment. An element may even
// straddle two pieces. Allocates in the constructor only.
//
// Thread safety: one thread at a time.
class PieceSum {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  // An input for each worker. REQUIRES: reduction.world_size >= 1.
  explicit PieceSum(ReductionOrder reduction);
  // An input for each node of a tree, which is the sum of this many leaves. REQUIRES: there are some.
  static PieceSum OfNodes(std::vector<int> leaves);

  // Input `rank`, or of this node, begins at the first byte of `pieces`, which stay alive and unchanged until the last
  // Next.
  void SetInput(int rank, Pieces pieces);

  // Writes the sum of the next sum.size() elements of all inputs. Chain: added left to right from `first_rank` on:
  // first_rank, first_rank + 1, ..., wrapping at the last rank. Tree: REQUIRES: first_rank == 0.
  // REQUIRES: every input was set and has that many elements left.
  void Next(int first_rank, std::span<float> sum);

 private:
  struct Input {
    Pieces rest;  // after the current piece
    std::span<const std::byte> current;
  };
  static float ReadOne(Input& input);

  SumOrder order_;
  std::vector<int> leaves_;                 // by input; empty: each is a leaf
  std::vector<Input> inputs_;               // by rank, or node
  std::vector<const std::byte*> in_order_;  // of one run of Next
  std::vector<float> straddling_;           // the elements of one run of length 1, in order
};

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_SUM_IN_ORDER_H_
