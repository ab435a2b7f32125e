// How the workers of a job exchange gradients, and the names that command lines have for it.
#ifndef STARRING_COMMON_JOB_SYNC_H_
#define STARRING_COMMON_JOB_SYNC_H_

#include <optional>

#include "common/flags/flag_table.h"

namespace starring {

enum class Sync { kLocal, kStar, kRing, kMpi, kNccl };

inline constexpr Choice<Sync> kResolvedSyncs[] = {
    {"local", Sync::kLocal}, {"star", Sync::kStar}, {"ring", Sync::kRing}, {"mpi", Sync::kMpi}, {"nccl", Sync::kNccl}};

// The values of --sync. An empty optional is "auto".
inline constexpr Choice<std::optional<Sync>> kSyncs[] = {{"auto", std::nullopt}, {"local", Sync::kLocal},
                                                         {"star", Sync::kStar},  {"ring", Sync::kRing},
                                                         {"mpi", Sync::kMpi},    {"nccl", Sync::kNccl}};

inline const char* SyncName(Sync sync) { return NameOf(kResolvedSyncs, sync); }

// The transport that carries gradients and parameters. kGrpc: to the servers of a star. kMpi, kTcp: between the ranks
// of a ring, or of a star whose ranks own the parameters; kTcp also to servers that are ranks too. With Sync::kNccl it
// brings the ranks together, and NCCL carries the rest. kNone: nothing is exchanged.
enum class TransportKind { kNone, kGrpc, kMpi, kTcp };

inline constexpr Choice<TransportKind> kResolvedTransports[] = {{"none", TransportKind::kNone},
                                                                {"grpc", TransportKind::kGrpc},
                                                                {"mpi", TransportKind::kMpi},
                                                                {"tcp", TransportKind::kTcp}};
// The values of --transport. An empty optional is "auto".
inline constexpr Choice<std::optional<TransportKind>> kTransports[] = {
    {"auto", std::nullopt}, {"grpc", TransportKind::kGrpc}, {"mpi", TransportKind::kMpi}, {"tcp", TransportKind::kTcp}};

inline const char* TransportName(TransportKind transport) { return NameOf(kResolvedTransports, transport); }

}  // namespace starring

#endif  // STARRING_COMMON_JOB_SYNC_H_
