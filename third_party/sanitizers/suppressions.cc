// What LeakSanitizer must not report, compiled in rather than read from a file: it holds for processes that a test
// starts too, whatever their working directory and environment.
//
// Every line names a library that is not ours and keeps memory until exit.
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
      // Its messages, through libc's asprintf, behind which the frame-pointer unwinder loses the caller.
      "leak:__vasprintf_internal\n"
      // gRPC 1.51 keeps the buffer of a TLS handshake that took several reads or failed.
      "leak:gpr_realloc\n"
      // libgomp's thread pool.
      "leak:libgomp.so\n";
}

// MPI_Finalize unloads Open MPI's plugins before the leak check at exit, which then cannot tell whose memory it found.
// While they stay loaded the lines above match.
extern "C" int dlclose(void* /*handle*/) noexcept { return 0; }
