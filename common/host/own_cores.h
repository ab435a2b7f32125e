// The cores that this process may use.
//
// Thread safety: a pure function of the process and its machine.
#ifndef STARRING_COMMON_HOST_OWN_CORES_H_
#define STARRING_COMMON_HOST_OWN_CORES_H_

#include <vector>

namespace starring {

// The numbers of the cores on which the calling thread may run, ascending; empty if the system does not tell them.
std::vector<int> OwnCores();

}  // namespace starring

#endif  // STARRING_COMMON_HOST_OWN_CORES_H_
