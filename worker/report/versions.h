// Versions of what decides bits and speed, for the run record.
#ifndef STARRING_WORKER_REPORT_VERSIONS_H_
#define STARRING_WORKER_REPORT_VERSIONS_H_

#include <map>
#include <string>

namespace starring {

// By name: starring, compiler, kernel, grpc, mpi, onednn, protobuf, as built or as running.
std::map<std::string, std::string> LibraryVersions();

}  // namespace starring

#endif  // STARRING_WORKER_REPORT_VERSIONS_H_
