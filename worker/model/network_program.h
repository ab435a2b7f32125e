// What a network does, as a list of instructions over storages: no device, no batch size, no pointers.
//
// Words. A *storage* is a piece of the arena that holds an activation or a gradient; its size is given in elements per
// sample, so one program and one memory plan serve every batch size: storage s of a batch of n samples lies at
// n * offset(s). *Time* is the position of an instruction in the order forward, loss, backward. A storage lives from
// the first instruction that touches it to the last.
//
// Storages are saved in three ways. Relu, dropout and flatten work in place where nobody else reads their input. An
// activation that backward does not need dies with its last reader. Gradients take over the places of whatever is dead.
//
// Where a tensor has two readers (a residual join), its gradient is the sum of two. `add` hands the same storage to
// both its inputs without copying; whoever wants to write to a storage that somebody else still holds writes elsewhere.
// The last of these sums is masked on the way where the tensor comes from a ReLU that has no layer to mask it.
#ifndef STARRING_WORKER_MODEL_NETWORK_PROGRAM_H_
#define STARRING_WORKER_MODEL_NETWORK_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "worker/model/network_graph.h"

namespace starring {

struct Instruction {
  enum class Operation {
    kForward,   // y = layer(x)
    kAdd,       // y = act(x + x2); forward of an add layer
    kBackward,  // dx = layer's backward of dy; dx may be kNone. dy is scratch
    kMask,      // dx = dy where y > 0; dx may be dy
    kSum,       // dx = x + x2, the two gradients of one tensor; dx may be x or x2
    kSumMask,   // both in one pass: dx = x + x2 where y > 0
  };
  Operation operation = Operation::kForward;
  int layer = 0;
  int x = -1, x2 = -1, y = -1, dy = -1, dx = -1;  // storages, or kNone or kImages
};

struct NetworkProgram {
  static constexpr int kNone = -1;
  static constexpr int kImages = -2;  // the batch that the caller brings

  struct Storage {
    int64_t sample_elements = 0;
    int64_t sample_offset = 0;  // a multiple of 16: every storage of every batch is 64-byte aligned
  };

  std::vector<Storage> storages;
  std::vector<std::vector<Instruction>> forward;   // of each layer
  std::vector<std::vector<Instruction>> backward;  // of each layer; empty in evaluation
  int logits = kNone;
  int dlogits = kNone;                // may be `logits`; kNone in evaluation
  int64_t arena_sample_elements = 0;  // the arena's size is batch times this
};

NetworkProgram BuildTrainingProgram(const NetworkGraph& graph);
// Dropout is left out; nothing is kept for backward.
NetworkProgram BuildEvaluationProgram(const NetworkGraph& graph);

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_PROGRAM_H_
