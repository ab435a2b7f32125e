#include "worker/exchange/star/join.h"

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/steady_time.h"
#include "common/wire/grpc_transport.h"
#include "common/wire/wire_version.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"
#include "worker/exchange/star/join_watch.h"

namespace starring {
namespace {

constexpr absl::Duration kRetryPause = absl::Milliseconds(50);
// Between two looks at why there is no connection.
constexpr absl::Duration kConnectWait = absl::Seconds(1);
// A rank that is taken becomes free when the server notices that its process is gone: in seconds, not in milliseconds.
constexpr absl::Duration kTakenPause = absl::Milliseconds(500);
// Refusals until that is said: a second, in which the place of a lost process may become free.
constexpr int kTakenCountSaid = 3;
// The server says who is missing when the deadline has passed: its answer needs a little longer than that.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);

// Not a random choice that could change results: it tells this process from another with the same rank.
uint64_t DrawWorkerId() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

absl::StatusOr<uint64_t> JoinOne(const JoinTarget& target, v1::JoinRequest request, const TransportSecurity& security,
                                 absl::Time deadline, absl::Duration join_deadline,
                                 const std::function<void(const std::string&)>& say) {
  const std::string server = absl::StrCat("server ", target.address, " (shard ", request.shard(), ")");
  const auto stub = v1::ParameterServer::NewStub(target.channel);
  int taken_count = 0;
  while (true) {
    request.set_join_deadline_ms(absl::ToInt64Milliseconds(BoundedDeadline(deadline - absl::Now())));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline + kAnswerGrace));
    v1::JoinReply reply;
    const grpc::Status status = stub->Join(&context, request, &reply);
    if (status.ok()) return reply.job_id();
    const bool is_taken = status.error_code() == grpc::StatusCode::ALREADY_EXISTS;
    if (const absl::Duration left = deadline - absl::Now(); is_taken && kTakenPause < left) {
      if (++taken_count == kTakenCountSaid && say != nullptr) {
        say(absl::StrCat(server, ": ", status.error_message(), "; trying for ",
                         absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
                         " more, in case that process is gone"));
      }
      absl::SleepFor(kTakenPause);
      continue;
    }
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
      return absl::Status(FromGrpcStatus(status).code(), absl::StrCat(server, ": ", status.error_message()));
    }
    const absl::Status reason = ExplainConnectionError(status.error_message(), security);
    if (!absl::IsUnavailable(reason)) {
      return absl::Status(reason.code(), absl::StrCat(server, ": ", std::string(reason.message())));
    }
    if (absl::Now() + kRetryPause >= deadline) {
      return absl::UnavailableError(absl::StrCat(server, " cannot be reached within ",
                                                 absl::FormatDuration(join_deadline), ": ",
                                                 std::string(reason.message())));
    }
    absl::SleepFor(kRetryPause);
    // gRPC of this age only goes on with a handshake while somebody waits: the call above does not, as it fails at once
    // while there is no connection. This returns as soon as there is one.
    target.channel->WaitForConnected(absl::ToChronoTime(std::min(deadline, absl::Now() + kConnectWait)));
  }
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> JoinAll(const JobSpec& job, const std::string& run_id,
                                              const TransportSecurity& security, const std::vector<JoinTarget>& targets,
                                              const StallOptions& stall) {
  const absl::Time deadline = absl::Now() + job.join_deadline;
  v1::JoinRequest request;
  request.set_run_id(run_id);
  request.set_wire_version(kWireVersion);
  request.set_token(security.token);
  request.set_rank(job.rank);
  request.set_worker_id(DrawWorkerId());
  request.set_shard_count(static_cast<int>(targets.size()));
  request.set_agreement(SerializeAgreement(job));
  request.set_exchange_deadline_ms(absl::ToInt64Milliseconds(BoundedDeadline(job.exchange_deadline)));
  request.set_stall_report_ms(stall.times.report_after.count());
  std::vector<uint64_t> job_ids;
  for (const JoinTarget& target : targets) {
    request.set_shard(static_cast<int>(job_ids.size()));
    request.set_lanes(target.lanes);
    const JoinWatch watch(absl::StrCat("server ", target.address, " (shard ", request.shard(), ")"), target.channel,
                          security.token, stall);
    absl::StatusOr<uint64_t> job_id = JoinOne(target, request, security, deadline, job.join_deadline, stall.say);
    if (!job_id.ok()) return job_id.status();
    job_ids.push_back(*job_id);
  }
  return job_ids;
}

}  // namespace starring
