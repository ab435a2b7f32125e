// The facts that this process reports about itself and its machine in a check before training.
//
// Thread safety: pure functions of the process and its machine.
#ifndef STARRING_COMMON_HOST_PROCESS_FACTS_H_
#define STARRING_COMMON_HOST_PROCESS_FACTS_H_

#include <cstdint>

#include "proto/starring/v1/check.pb.h"

namespace starring {

// Host, program's version, protobuf's version, cores, memory and descriptors. The caller adds what it alone knows:
// other libraries, the GPU, addresses.
v1::ProcessFacts ReadProcessFacts(v1::ProcessFacts::Role role, int number);

// Microseconds since 1970 by the wall clock.
int64_t WallClockMicroseconds();

}  // namespace starring

#endif  // STARRING_COMMON_HOST_PROCESS_FACTS_H_
