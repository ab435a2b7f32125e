// A network as a list of instructions over storages, without a device, a batch size or pointers.
//
// Words. A *storage* is a piece of the arena that holds one activation or one gradient. Its offset is counted in bytes
// per sample: with a batch of n samples, storage s begins at byte n * offset(s). So one program and one memory plan
// serve every batch size. *Time* is the position of an instruction in the order forward, loss, backward. A storage is
// alive from the first instruction that touches it to the last; two storages may share memory if they are never alive
// at the same time.
//
// Three things keep the arena small:
//   1. relu, dropout, flatten and activations that backward computes from y work in place where no other layer reads
//      their input.
//   2. An activation that backward does not read dies with its last reader in forward.
//   3. Gradients reuse the memory of everything that is dead by then.
//
// A tensor with two readers (a residual join) has a gradient that is the sum of two. `add` gives one storage to both of
// its inputs as their gradient, without a copy. The program counts the *holders* of each storage: the tensors whose
// gradient it is at that time. An instruction may overwrite a storage only if no other tensor holds it; otherwise it
// writes to a new storage.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_MODEL_NETWORK_PROGRAM_H_
#define STARRING_WORKER_MODEL_NETWORK_PROGRAM_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/element.h"
#include "worker/model/network_graph.h"

namespace starring {

struct Instruction {
  enum class Operation {
    kForward,   // y = layer(x)
    kAdd,       // y = act(x + x2); forward of an add layer
    kBackward,  // dx = layer's backward of dy; dx may be kNone. Overwrites dy
    kMask,      // dx = dy where y > 0, else 0; dx may be dy
    kSum,       // dx = x + x2, the two gradients of one tensor; dx may be x or x2
    kSumMask,   // kSum and kMask in one pass: dx = x + x2 where y > 0, else 0
  };
  Operation operation = Operation::kForward;
  int layer = 0;
  int part = 0;                                   // of a layer with an operation for each input
  int x = -1, x2 = -1, y = -1, dy = -1, dx = -1;  // storages, or kNone or kImages
};

struct NetworkProgram {
  static constexpr int kNone = -1;
  static constexpr int kImages = -2;  // the batch's images, in the caller's memory

  struct Storage {
    int64_t sample_elements = 0;
    Element element = Element::kFloat32;
    int64_t sample_offset_bytes = 0;  // a multiple of 64: so is the offset of every storage of every batch
  };

  std::vector<Storage> storages;
  std::vector<std::vector<Instruction>> forward;   // by layer
  std::vector<std::vector<Instruction>> backward;  // by layer; empty in evaluation
  int logits = kNone;
  int dlogits = kNone;             // may be `logits`; kNone in evaluation
  int64_t arena_sample_bytes = 0;  // the arena has batch times as many bytes
};

// Images and storages have elements of the kind `element`, but for the outputs of a last layer that is dense, and their
// gradient: the loss reads and writes these two in float32.
NetworkProgram BuildTrainingProgram(const NetworkGraph& graph, Element element = Element::kFloat32);
// Without dropout. No activation is kept for backward.
NetworkProgram BuildEvaluationProgram(const NetworkGraph& graph, Element element = Element::kFloat32);

// A buffer that is in use from time `first` to time `last`, both included.
struct BufferLife {
  int64_t size = 0;
  int first = 0;
  int last = 0;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // by buffer; multiples of the alignment
  int64_t size = 0;              // of the arena; a multiple of the alignment
};

// Places buffers of known lifetimes in one arena so that no two that are alive at the same time overlap. Greedy by size
// (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5.2): the largest
// buffer first, each at the lowest offset that is free during its whole life. O(n^2) for n buffers. The arena is never
// larger than the sum of all sizes, and never smaller than the largest sum of sizes that are alive at one time.
// REQUIRES: sizes >= 0, first <= last, alignment >= 1.
MemoryPlan PlanMemory(std::span<const BufferLife> buffers, int64_t alignment);

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_PROGRAM_H_
