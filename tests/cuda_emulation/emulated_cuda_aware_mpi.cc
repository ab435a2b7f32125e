// An MPI that says it is CUDA-aware. And so it is: emulated GPU memory is host memory. Linked into a program, this goes
// before the library's function.
extern "C" int MPIX_Query_cuda_support() { return 1; }
