// Counts what the code under test flushes to disk: no test can cut a machine's power. A test that is linked with this
// has its own fdatasync and fsync in place of the C library's.
//
// Thread safety: any thread may flush and ask.
#ifndef STARRING_TESTS_SERVER_ELASTIC_COUNTED_FLUSHES_H_
#define STARRING_TESTS_SERVER_ELASTIC_COUNTED_FLUSHES_H_

namespace starring {

struct FlushCounts {
  int files = 0;    // by fdatasync
  int folders = 0;  // by fsync
};

// Since the process began or this was called last.
FlushCounts TakeFlushCounts();

}  // namespace starring

#endif  // STARRING_TESTS_SERVER_ELASTIC_COUNTED_FLUSHES_H_
