// Finds the MPI library of a job at run time and loads it. So one program runs under the MPI of any cluster: that whose
// launcher has started it. mpi_abi.h has the two binary interfaces.
//
// With "auto" the launcher says which family of libraries is looked for first:
//
//   Open MPI's mpirun       Open MPI
//   another PMI launcher    MPICH's family (MPICH, Intel MPI, Cray MPICH)
//   srun with PMIx          Open MPI, then MPICH's family
//   srun with PMI           MPICH's family, then Open MPI
//   none                    Open MPI, then MPICH's family
//
// The folders are, in this order: the library folders of the launcher that has started this process; the loader's own
// (the program's search path, LD_LIBRARY_PATH, the system's); those of I_MPI_ROOT, MPI_ROOT and MPI_HOME; those of the
// mpiexec or mpirun on PATH. A launcher's library that does not load is an error. A program that is linked with an MPI
// uses that one.
//
// Thread safety: one thread, before others read the environment.
#ifndef STARRING_COMMON_TRANSPORT_MPI_MPI_LIBRARY_H_
#define STARRING_COMMON_TRANSPORT_MPI_MPI_LIBRARY_H_

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/host/launcher_environment.h"
#include "common/transport/mpi/mpi_abi.h"

namespace starring {

enum class MpiFamily { kOpenMpi, kMpich };

// A library, which stays loaded until the process ends.
struct MpiLibrary {
  std::string file;  // empty: the program is linked with it
  std::variant<MpiCalls<OpenMpiAbi>, MpiCalls<MpichAbi>> calls;

  MpiFamily family() const { return calls.index() == 0 ? MpiFamily::kOpenMpi : MpiFamily::kMpich; }
  // As the library says it: "Open MPI 4.1.4", "MPICH 4.0.2". May be called before MPI is started.
  std::string Name() const;
};

// `asked` is "auto", "openmpi", "mpich", a library's file, or a folder with one. NotFound, with each file that was
// found and the loader's reason, if none can be loaded; InvalidArgument if the file is no MPI library.
absl::StatusOr<MpiLibrary> LoadMpiLibrary(const std::string& asked, Launcher launcher);

// The families in the order in which they are tried; `lookup` is getenv, or a test's own function.
std::vector<MpiFamily> MpiFamilies(const std::string& asked, Launcher launcher, EnvironmentLookup lookup);
// The folders of a launcher or an installation in `prefix` that exist.
std::vector<std::string> LibraryFolders(const std::string& prefix);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MPI_MPI_LIBRARY_H_
