// An MPI that says it is CUDA-aware. And so it is: emulated GPU memory is host memory. Linked into a program, these
// functions go before the library's.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

#include "tests/cuda_emulation/emulated_gpu.h"

extern "C" int MPIX_Query_cuda_support() { return 1; }

// With EMULATED_MPI_SAYS_GPU=yes in the environment: which GPU a library finds that looks for one here.
extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  if (std::getenv("EMULATED_MPI_SAYS_GPU") != nullptr) {
    std::fprintf(stderr, "MPI_Init with GPU %d\n", starring::cuda_emulation::CurrentGpu());
  }
  return PMPI_Init_thread(argc, argv, required, provided);
}
