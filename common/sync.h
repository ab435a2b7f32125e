// How the workers of a job exchange gradients, and the names that command lines have for it.
#ifndef STARRING_COMMON_SYNC_H_
#define STARRING_COMMON_SYNC_H_

#include "common/flags/flag_table.h"

namespace starring {

enum class Sync { kLocal, kStar, kRing, kMpi };

inline constexpr Choice<Sync> kResolvedSyncs[] = {
    {"local", Sync::kLocal}, {"star", Sync::kStar}, {"ring", Sync::kRing}, {"mpi", Sync::kMpi}};

inline const char* SyncName(Sync sync) { return NameOf(kResolvedSyncs, sync); }

}  // namespace starring

#endif  // STARRING_COMMON_SYNC_H_
