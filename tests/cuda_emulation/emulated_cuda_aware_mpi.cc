// An MPI that says that it is CUDA-aware, and is, because emulated GPU memory is host memory. With
// EMULATED_MPI_IS_AWARE=no in the environment it does not say so. Linked into a program, these functions replace the
// library's.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

#include "tests/cuda_emulation/emulated_gpu.h"

extern "C" int MPIX_Query_cuda_support() { return std::getenv("EMULATED_MPI_IS_AWARE") == nullptr ? 1 : 0; }

// With EMULATED_MPI_SAYS_GPU=yes in the environment, prints the current GPU of the thread that starts MPI.
extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  if (std::getenv("EMULATED_MPI_SAYS_GPU") != nullptr) {
    std::fprintf(stderr, "MPI_Init with GPU %d\n", starring::cuda_emulation::CurrentGpu());
  }
  return PMPI_Init_thread(argc, argv, required, provided);
}
