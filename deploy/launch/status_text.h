// What --status prints of an elastic job.
#ifndef STARRING_DEPLOY_LAUNCH_STATUS_TEXT_H_
#define STARRING_DEPLOY_LAUNCH_STATUS_TEXT_H_

#include <string>

#include "common/wire/run_client.h"

namespace starring {

// How an elastic job is, for people: some lines, of printable characters alone.
std::string StatusText(const RunStatus& run);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_STATUS_TEXT_H_
