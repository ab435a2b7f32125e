// Where an error comes from, as a mark on its status. An elastic run decides by it whose trouble an error is, because a
// code does not say so: a failed GPU and a gradient that is not finite are both Internal.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_BASE_ERROR_ORIGIN_H_
#define STARRING_COMMON_BASE_ERROR_ORIGIN_H_

#include <cstdint>

#include "absl/status/status.h"

namespace starring {

struct ErrorOrigin {
  enum class Kind {
    kProcess,         // no mark: this process, its machine, or what it was given
    kNotFinite,       // the job: a gradient of step `number`, or a parameter that it begins with, is not finite
    kOtherLoss,       // the job: step `number` was computed again, and has another loss
    kExchange,        // the other processes, or the ways to them
    kServer,          // the server of shard `number` cannot be reached, or does not answer
    kMissingWorkers,  // other workers have not joined
    kNoRoom,          // a server has too little memory, or too few descriptors, for so many workers
  };
  static constexpr int kKindCount = 7;

  Kind kind = Kind::kProcess;
  int64_t number = 0;
  friend bool operator==(const ErrorOrigin&, const ErrorOrigin&) = default;
};

// Whether a job has such errors on any machine.
inline bool IsOfJob(ErrorOrigin origin) {
  return origin.kind == ErrorOrigin::Kind::kNotFinite || origin.kind == ErrorOrigin::Kind::kOtherLoss;
}

// `status` with that mark, instead of one that it has. Annotate keeps the mark. It does not travel to other processes.
// REQUIRES: !status.ok().
absl::Status WithOrigin(absl::Status status, ErrorOrigin origin);
ErrorOrigin OriginOf(const absl::Status& status);

}  // namespace starring

#endif  // STARRING_COMMON_BASE_ERROR_ORIGIN_H_
