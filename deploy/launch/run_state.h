// Reads the state folder of an elastic run for the launcher.
#ifndef STARRING_DEPLOY_LAUNCH_RUN_STATE_H_
#define STARRING_DEPLOY_LAUNCH_RUN_STATE_H_

#include <string>

namespace starring {

// The run id of the run whose log (server/elastic/generation_log.h) is in `folder`. Servers that are started with it
// go on with that run. Empty if there is no such log, or if its run has ended. May be called while shard 0 writes the
// log.
std::string UnfinishedRun(const std::string& folder);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_RUN_STATE_H_
