// A worker's progress as a message of the star.
#ifndef STARRING_COMMON_WIRE_PROGRESS_MESSAGE_H_
#define STARRING_COMMON_WIRE_PROGRESS_MESSAGE_H_

#include "common/progress_state.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

void SetProgress(const WorkState& state, v1::Progress* progress);
// What makes no sense becomes "unknown".
WorkState GetProgress(const v1::Progress& progress);

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_PROGRESS_MESSAGE_H_
