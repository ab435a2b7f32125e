#include "common/job/cells.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace starring {
namespace {

using P = Placement;
using T = TransportKind;
using C = Contact;

constexpr SameHost kMessages = SameHost::kSocket;
constexpr SameHost kShared = SameHost::kSharedMemory;
constexpr SameHost kOnGpus = SameHost::kGpuMemory;

// Abilities of ring and star where the ranks own the parameters, of every star with servers, and of servers over gRPC.
constexpr unsigned kOfRanks = Cell::kDeterministic | Cell::kAutoBuckets | Cell::kAutoSync | Cell::kWholeGradient;
constexpr unsigned kStarOfRanks = kOfRanks | Cell::kTree;
// A star in memory moves fewer bytes, so --sync=auto does not measure the ring there.
constexpr unsigned kRingInMemory = kOfRanks & ~Cell::kAutoSync;
constexpr unsigned kRingOnGpus = kRingInMemory & ~(Cell::kWholeGradient | Cell::kAutoBuckets);
constexpr unsigned kStarOnGpus = kStarOfRanks & ~(Cell::kWholeGradient | Cell::kAutoBuckets);
constexpr unsigned kStarOfServers = Cell::kDeterministic | Cell::kTree | Cell::kSecret | Cell::kStatus;
constexpr unsigned kOverGrpc = Cell::kSiteCertificates | Cell::kElastic;

// A pattern that fits several cells finds the first of them (FindCell), so the order counts.
constexpr Cell kCells[] = {
    {"local", Sync::kLocal, P::kEachRank, T::kNone, kMessages, C::kNone,
     Cell::kTree | Cell::kDeterministic | Cell::kUsual | Cell::kWholeGradient},
    {"ring", Sync::kRing, P::kRanks, T::kMpi, kMessages, C::kMpirun, kOfRanks | Cell::kGpuMemory | Cell::kUsual},
    {"ring-shm", Sync::kRing, P::kRanks, T::kMpi, kShared, C::kMpirun, kRingInMemory},
    {"ring-mpi-gpu", Sync::kRing, P::kRanks, T::kMpi, kOnGpus, C::kMpirun, kRingOnGpus},
    {"ring-tcp", Sync::kRing, P::kRanks, T::kTcp, kMessages, C::kRendezvous, kOfRanks | Cell::kSecret},
    {"ring-tcp-shm", Sync::kRing, P::kRanks, T::kTcp, kShared, C::kRendezvous, kRingInMemory | Cell::kSecret},
    {"ring-tcp-gpu", Sync::kRing, P::kRanks, T::kTcp, kOnGpus, C::kRendezvous, kRingOnGpus | Cell::kSecret},
    {"star-mpi", Sync::kStar, P::kRanks, T::kMpi, kMessages, C::kMpirun, kStarOfRanks | Cell::kGpuMemory},
    {"star-mpi-shm", Sync::kStar, P::kRanks, T::kMpi, kShared, C::kMpirun, kStarOfRanks},
    {"star-mpi-gpu", Sync::kStar, P::kRanks, T::kMpi, kOnGpus, C::kMpirun, kStarOnGpus},
    {"star-tcp", Sync::kStar, P::kRanks, T::kTcp, kMessages, C::kRendezvous, kStarOfRanks | Cell::kSecret},
    {"star-tcp-shm", Sync::kStar, P::kRanks, T::kTcp, kShared, C::kRendezvous, kStarOfRanks | Cell::kSecret},
    {"star-tcp-gpu", Sync::kStar, P::kRanks, T::kTcp, kOnGpus, C::kRendezvous, kStarOnGpus | Cell::kSecret},
    {"star-servers-tcp", Sync::kStar, P::kServers, T::kTcp, kMessages, C::kRendezvous, kStarOfServers},
    {"star-servers-tcp-shm", Sync::kStar, P::kServers, T::kTcp, kShared, C::kRendezvous, kStarOfServers},
    {"star", Sync::kStar, P::kServers, T::kGrpc, kMessages, C::kServers, kStarOfServers | kOverGrpc | Cell::kUsual},
    {"star-shm", Sync::kStar, P::kServers, T::kGrpc, kShared, C::kServers, kStarOfServers | kOverGrpc},
    {"mpi", Sync::kMpi, P::kEachRank, T::kMpi, kMessages, C::kMpirun, Cell::kUsual | Cell::kWholeGradient},
    {"nccl", Sync::kNccl, P::kEachRank, T::kMpi, kMessages, C::kMpirun, Cell::kUsual},
    {"nccl-tcp", Sync::kNccl, P::kEachRank, T::kTcp, kMessages, C::kRendezvous, Cell::kSecret},
};

struct Reason {
  Cell::Ability ability;
  CellPattern cells;
  absl::string_view why;
};
constexpr Reason kReasons[] = {
    {Cell::kTree, {.sync = Sync::kRing}, "passes partial sums from rank to rank, which is a chain"},
    {Cell::kTree, {.sync = Sync::kMpi}, "leaves the order to MPI"},
    {Cell::kTree, {.sync = Sync::kNccl}, "leaves the order to NCCL"},
    {Cell::kAutoBuckets, {.sync = Sync::kMpi}, "MPI may add in another order if a bucket has another size"},
    {Cell::kAutoBuckets, {.sync = Sync::kNccl}, "a captured step keeps to its buckets"},
    {Cell::kAutoBuckets, {.same_host = kOnGpus}, "a captured step keeps to its buckets"},
    {Cell::kAutoBuckets, {.server_count = 1}, "servers cut the parameters when the workers join, and keep to that"},
    {Cell::kWholeGradient, {.sync = Sync::kNccl}, "the sums stay on the GPUs, and the norm is computed in host memory"},
    {Cell::kWholeGradient, {.same_host = kOnGpus}, "an owner adds and updates in one pass, and knows no norm"},
    {Cell::kWholeGradient, {.server_count = 1}, "a server updates a bucket at once, and knows no norm of the others"},
};

template <typename Value>
bool Fits(const std::optional<Value>& asked, const Value& value) {
  return !asked.has_value() || *asked == value;
}

bool Fits(const CellPattern& pattern, const Cell& cell) {
  const bool may_have_servers =
      !pattern.server_count.has_value() || (*pattern.server_count > 0) == (cell.placement == Placement::kServers);
  return may_have_servers && Fits(pattern.sync, cell.sync) && Fits(pattern.transport, cell.transport) &&
         Fits(pattern.same_host, cell.same_host) && Fits(pattern.contact, cell.contact) && cell.May(pattern.may);
}

}  // namespace

std::span<const Cell> Cells() { return kCells; }

const Cell* FindCell(const CellPattern& pattern) {
  const auto cell = std::ranges::find_if(kCells, [&](const Cell& each) { return Fits(pattern, each); });
  return cell == std::end(kCells) ? nullptr : cell;
}

const Cell& CellOf(CellPattern pattern) {
  const Cell* cell = FindCell(pattern);
  if (cell == nullptr) {
    // A cell with another way within a host is better than none.
    pattern.same_host.reset();
    cell = FindCell(pattern);
  }
  CHECK(cell != nullptr);
  return *cell;
}

std::string CellFlags(const Cell& cell) {
  const std::string sync = absl::StrCat("--sync=", SyncName(cell.sync));
  return cell.Exchanges() ? absl::StrCat(sync, " --transport=", TransportName(cell.transport)) : sync;
}

bool MayHaveServers(Sync sync) { return FindCell({.sync = sync, .server_count = 1}) != nullptr; }

bool IsCoLocated(const Cell& cell) { return cell.placement == Placement::kRanks && MayHaveServers(cell.sync); }

absl::string_view WhyNot(const Cell& cell, Cell::Ability ability) {
  if (cell.May(ability)) return "";
  for (const Reason& reason : kReasons) {
    if (reason.ability == ability && Fits(reason.cells, cell)) return reason.why;
  }
  return "";
}

std::string WhyNotOver(Sync sync, TransportKind transport) {
  const std::string flag = absl::StrCat("--sync=", SyncName(sync));
  if (!CellOf({.sync = sync}).Exchanges()) return absl::StrCat(flag, " exchanges nothing: drop it");
  std::set<std::string> topologies, transports;
  for (const Cell& cell : kCells) {
    if (cell.transport == transport) topologies.insert(SyncName(cell.sync));
    if (cell.sync == sync) transports.insert(TransportName(cell.transport));
  }
  const std::string others = absl::StrJoin(topologies, " or ");
  if (sync == Sync::kMpi) return absl::StrCat(flag, " is MPI's own allreduce: drop it, or choose ", others);
  return absl::StrCat(flag, " cannot use it, only a ", others, " has it: choose ", absl::StrJoin(transports, " or "));
}

}  // namespace starring
