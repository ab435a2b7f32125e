// Texts under names, by which the ranks of a check before training meet.
//
// They travel through the launcher's own connections, so they arrive even if no message between ranks does. Only mpirun
// has them: under other launchers Open MPI prints a warning and fails.
//
// Thread safety: the thread that created the MpiRuntime, while there is one.
#ifndef STARRING_COMMON_TRANSPORT_MPI_MPI_NAMES_H_
#define STARRING_COMMON_TRANSPORT_MPI_MPI_NAMES_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/mpi/mpi_runtime.h"

namespace starring {

// The text may have any length and no zero bytes; a name is published once.
absl::Status PublishMpiName(const MpiRuntime& runtime, const std::string& name, const std::string& text);
// Empty if no rank has published that name yet.
absl::StatusOr<std::optional<std::string>> LookUpMpiName(const MpiRuntime& runtime, const std::string& name);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MPI_MPI_NAMES_H_
