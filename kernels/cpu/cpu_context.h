// What the operations of one CPU device share. They point to it: a device outlives its operations.
#ifndef STARRING_KERNELS_CPU_CPU_CONTEXT_H_
#define STARRING_KERNELS_CPU_CPU_CONTEXT_H_

#include "common/arithmetic/instruction_set.h"
#include "dnnl.hpp"
#include "kernels/cpu/scratch.h"

namespace starring {

struct CpuContext {
  int threads = 1;
  InstructionSet instruction_set = BestInstructionSet();  // of our own loops; oneDNN looks for itself
  Scratch scratch;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_CPU_CONTEXT_H_
