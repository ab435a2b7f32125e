// The messages of a check before training (worker --check), over the transport of the job: the processes of a world
// measure their connections, rank 0 gathers what all have found, and tells all the verdict.
//
//   without servers   every rank measures the connection to the next rank
//   with servers      every worker measures the connection to every server
//
// One process measures at a time, in the order of ranks: tests that share a switch or a host would slow each other
// down. So a process knows whose messages come next, and answers them in that order.
//
// Each call is collective over the workers and servers of the world, which are at least two.
//
// Thread safety: one thread.
#ifndef STARRING_COMMON_TRANSPORT_CHECK_CONVERSATION_H_
#define STARRING_COMMON_TRANSPORT_CHECK_CONVERSATION_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/message_pump.h"
#include "proto/starring/v1/check.pb.h"

namespace starring {

// For all tests of all processes, and for each of the two other calls.
inline constexpr absl::Duration kTestsDeadline = absl::Seconds(30);

struct LinkTests {
  v1::LinkReport::Means means = v1::LinkReport::TCP;
  double bandwidth_seconds = 0;                  // of one test of bandwidth; 0: this process tests none
  absl::Duration deadline = kTestsDeadline;      // for the tests of all processes
  absl::Duration own_deadline = kTestsDeadline;  // for those of this process
};

// Adds the connections that this process has measured to `report`. A connection that fails has its error there, too,
// and is the last. After an error the transport may still use the pump's buffers.
absl::Status TestLinks(MessagePump& pump, const LinkTests& tests, v1::ProcessReport& report);

// At rank 0 the reports of all processes, in the order of ranks; nothing elsewhere.
absl::StatusOr<std::vector<v1::ProcessReport>> GatherReports(MessagePump& pump, const v1::ProcessReport& own);

// Replaces `exit_code` by that of rank 0.
absl::Status TellVerdict(MessagePump& pump, int& exit_code);

// Tells the servers of the world that the workers check it, and start no job. Called by every worker before TestLinks.
absl::Status InviteServers(MessagePump& pump);

// A server's part after the invitation: all calls above. `own` has its facts.
absl::Status AnswerCheck(MessagePump& pump, v1::ProcessReport own);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_CHECK_CONVERSATION_H_
