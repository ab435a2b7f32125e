// Suppressions compiled in rather than read from a file: they hold for processes that a test starts
// too, whatever their working directory and environment.
//
// Every line names a library that is not ours and keeps memory until exit on purpose.
extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  return
      // Open MPI keeps component and topology tables, its dlopened plugins included.
      "leak:libmpi.so\n"
      "leak:libopen-rte.so\n"
      "leak:libopen-pal.so\n"
      "leak:libpmix.so\n"
      "leak:libhwloc.so\n"
      "leak:libevent\n"
      "leak:mca_\n"
      // libgomp's thread pool.
      "leak:libgomp.so\n";
}
