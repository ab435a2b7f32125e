// The one table of the ways in which the workers of a job may exchange gradients, and of what each way may do.
//
// Words. A *cell* is one way: a topology, where the owners of the parameters are, a transport, and how arrays travel
// inside one host. Worker, launcher and server look up here what they refuse, start and report. A page's table and
// bench/compare/measured/cells.json follow from the rows. After a change,
//     bazel run //worker/options:flag_pages -- "$PWD"
// writes both.
#ifndef STARRING_COMMON_JOB_CELLS_H_
#define STARRING_COMMON_JOB_CELLS_H_

#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "common/job/sync.h"

namespace starring {

// Which processes update the parameters.
enum class Placement {
  kEachRank,  // every rank updates all of them: a process alone, and the allreduce of MPI or NCCL
  kRanks,     // every rank owns a part
  kServers,   // every server owns a part
};

// How the processes of a job find each other.
enum class Contact {
  kNone,        // there is one process
  kMpirun,      // mpirun or srun introduces the ranks
  kRendezvous,  // all processes meet at rank 0's address
  kServers,     // the workers dial the servers' addresses
};

// How arrays travel between processes of one machine. kSharedMemory, with servers: where memory can be shared with
// every server, else as kSocket. Without servers the ranks share memory, or refuse to start. kGpuMemory: the ranks map
// each other's GPU memory, or refuse to start; with too little of it they go by way of the host.
enum class SameHost { kSharedMemory, kSocket, kGpuMemory };

struct Cell {
  enum Ability : unsigned {
    kTree = 1 << 0,              // adds as a tree, and so takes --sum_order=tree and --micro_batches
    kDeterministic = 1 << 1,     // flags and seed decide the bits, not a library
    kAutoBuckets = 1 << 2,       // buckets may have another size between two steps: --bucket_bytes=auto
    kAutoSync = 1 << 3,          // one of those that --sync=auto measures
    kSecret = 1 << 4,            // connections are authenticated by --job_secret, and encrypted with --tls
    kSiteCertificates = 1 << 5,  // --tls_ca, --tls_certificate and --tls_key
    kGpuMemory = 1 << 6,         // --cuda_aware_mpi: messages may go from GPU to GPU
    kElastic = 1 << 7,           // workers may come and go
    kStatus = 1 << 8,            // a server answers GetStatus
    kUsual = 1 << 9,             // deploy/launch takes it where --transport does not say more
    kWholeGradient = 1 << 10,    // every rank gets the whole sum, if asked: --clip_norm
  };

  const char* name;  // in tables and on command lines of bench/
  Sync sync;
  Placement placement;
  TransportKind transport;
  SameHost same_host;
  Contact contact;
  unsigned abilities;

  // True if the cell has all of `wanted`, which is made of Ability.
  [[nodiscard]] bool May(unsigned wanted) const { return (abilities & wanted) == wanted; }
  // False for a process alone.
  [[nodiscard]] bool Exchanges() const { return contact != Contact::kNone; }
};

// All cells. Neighbours are alike. A way by messages comes before the same way in shared memory.
std::span<const Cell> Cells();

// A question about cells. A field without a value asks nothing.
struct CellPattern {
  std::optional<Sync> sync;
  std::optional<int> server_count;  // above 0: servers own the parameters
  std::optional<TransportKind> transport;
  std::optional<SameHost> same_host;
  std::optional<Contact> contact;
  unsigned may = 0;  // made of Cell::Ability; the cell has all of them
};

// The first cell that matches `pattern`; null if no cell does.
const Cell* FindCell(const CellPattern& pattern);

// FindCell for a job whose flags are checked. A cell without that `same_host` has one way of its own for arrays inside
// a host, so the field then asks nothing.
// REQUIRES: there is a cell with the other fields.
const Cell& CellOf(CellPattern pattern);

// "--sync=star --transport=tcp", or "--sync=local".
std::string CellFlags(const Cell& cell);

// Whether a topology has cells with servers.
bool MayHaveServers(Sync sync);

// A star whose ranks own the parameters, where servers might.
bool IsCoLocated(const Cell& cell);

// Why `cell` lacks `ability`, as a part of a refusal. Empty if it has the ability, and for abilities whose refusals
// need no more than the names of cells.
absl::string_view WhyNot(const Cell& cell, Cell::Ability ability);

// Why no cell of `sync` has that transport, and the way out.
// REQUIRES: no cell has both, and `transport` is not kNone.
std::string WhyNotOver(Sync sync, TransportKind transport);

}  // namespace starring

#endif  // STARRING_COMMON_JOB_CELLS_H_
