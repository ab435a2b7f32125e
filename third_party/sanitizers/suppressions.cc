// Leaks that LeakSanitizer does not report. The list is compiled in rather than read from a file, so that it also holds
// for the processes that a test starts, in any working directory and environment.
//
// Every line names a library that is not ours and that keeps memory until exit.
extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  return
      // Open MPI keeps component and topology tables, its plugins (mca_*.so) included.
      "leak:libmpi.so\n"
      "leak:libopen-rte.so\n"
      "leak:libopen-pal.so\n"
      "leak:libpmix.so\n"
      "leak:libhwloc.so\n"
      "leak:libevent\n"
      "leak:mca_\n"
      // Open MPI makes its messages by libc's asprintf, in which the frame-pointer unwinder loses the caller.
      "leak:__vasprintf_internal\n"
      // gRPC 1.51 keeps the buffer of a TLS handshake that took several reads or failed.
      "leak:gpr_realloc\n"
      // The thread pools of GCC's and clang's OpenMP.
      "leak:libgomp.so\n"
      "leak:libomp.so\n";
}

// MPI_Finalize unloads Open MPI's plugins before the leak check at exit. The check then could not tell that a leak is a
// plugin's. Plugins that stay loaded match the lines above.
extern "C" int dlclose(void* /*handle*/) noexcept { return 0; }
