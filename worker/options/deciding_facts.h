// The facts besides flags that decide a run's numbers: the contents of the files that flags name, and the variables
// with which the environment steers libraries that compute.
//
// The ranks compare the facts before the first step (JobSpec::agreed_flags), and a resumed run compares them with the
// checkpoint (resume_check.h). Equal files may have different paths.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_OPTIONS_DECIDING_FACTS_H_
#define STARRING_WORKER_OPTIONS_DECIDING_FACTS_H_

#include <string>
#include <utility>
#include <vector>

#include "common/host/launcher_environment.h"
#include "worker/data/dataset.h"
#include "worker/model/layer_file.h"

namespace starring {

// (name, value). A name without a dot is a flag's: what the flag's value names.
using Facts = std::vector<std::pair<std::string, std::string>>;

// "model", with the digest of the layers; "data.train" and "data.test"; "environment.NAME" for each variable that is
// set.
Facts DecidingFacts(const LayerFile& layers, const TrainAndTest& data, const LauncherEnvironment& environment);

// The last of these alone.
Facts EnvironmentFacts(const LauncherEnvironment& environment);

}  // namespace starring

#endif  // STARRING_WORKER_OPTIONS_DECIDING_FACTS_H_
