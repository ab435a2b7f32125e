// Compares a checkpoint with the run that is to go on from it.
//
// The checkpoint's manifest has the values that decide a run's numbers: flags that have a trait for it
// (worker_options.h) and facts (deciding_facts.h, kernels/cpu/cpu_device.h). A value that may not change is refused; a
// value that may change is reported.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_CHECKPOINT_RESUME_CHECK_H_
#define STARRING_WORKER_CHECKPOINT_RESUME_CHECK_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/checkpoint.h"
#include "worker/options/deciding_facts.h"
#include "worker/options/worker_options.h"

namespace starring {

// The consequence of a difference in a value for a run that resumes.
enum class WhenResumed { kRefused, kSaid };

// For a flag by its trait, for a fact by the table in resume_check.cc.
WhenResumed RuleOf(absl::string_view name);

// The values that decide the numbers of a run, by name, as Checkpoint::config has them. `facts` override flags of the
// same name.
std::map<std::string, std::string> DecidingValues(const WorkerOptions& worker, const Facts& facts);

// InvalidArgument, with both values and the way out, if the run cannot go on from `checkpoint`, which is in `folder`
// and need have no tensors yet. Otherwise one line for each difference that is allowed.
absl::StatusOr<std::vector<std::string>> CheckResume(const Checkpoint& checkpoint, const std::string& folder,
                                                     const WorkerOptions& worker, const Facts& facts);

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINT_RESUME_CHECK_H_
