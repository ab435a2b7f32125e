// The text that --status prints about an elastic job.
#ifndef STARRING_DEPLOY_LAUNCH_STATUS_TEXT_H_
#define STARRING_DEPLOY_LAUNCH_STATUS_TEXT_H_

#include <string>

#include "common/wire/run_client.h"

namespace starring {

// The state of an elastic job, for people: a few lines that have printable characters only.
std::string StatusText(const RunStatus& run);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_STATUS_TEXT_H_
