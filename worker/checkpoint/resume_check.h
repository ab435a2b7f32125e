// Compares a checkpoint with the run that is to go on from it.
//
// What decides a run's numbers is in the checkpoint's manifest: flags that have a trait for it (worker_options.h) and
// facts (deciding_facts.h, kernels/cpu/cpu_device.h). What may not change is refused, and what may change is said.
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

// What a difference in a value means to a run that resumes.
enum class WhenResumed { kRefused, kSaid };

// For a flag by its trait, for a fact by the table in resume_check.cc.
WhenResumed RuleOf(absl::string_view name);

// What decides the numbers of a run, by name, as Checkpoint::config has it. `facts` override flags of the same name.
std::map<std::string, std::string> DecidingValues(const WorkerOptions& worker, const Facts& facts);

// InvalidArgument, with both values and the way out, if the run cannot go on from `checkpoint`, which is in `folder`
// and need have no tensors yet. Otherwise one line for each difference that may be.
absl::StatusOr<std::vector<std::string>> CheckResume(const Checkpoint& checkpoint, const std::string& folder,
                                                     const WorkerOptions& worker, const Facts& facts);

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINT_RESUME_CHECK_H_
