// The functions of starring.h: they check what a caller gives, and turn statuses into codes and sentences.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/network/address.h"
#include "common/network/dial.h"
#include "common/network/port_range.h"
#include "common/reduce/arrays/element_sum.h"
#include "common/reduce/arrays/reduction.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "common/transport/transport.h"
#include "worker/python/gpu/cuda_driver.h"
#include "worker/python/group.h"
#include "worker/python/starring.h"

struct st_group {
  pid_t process = 0;  // which opened it
  std::unique_ptr<starring::Group> group;
};

namespace starring {
namespace {

static_assert(static_cast<int>(Topology::kStar) == ST_STAR && static_cast<int>(Topology::kRing) == ST_RING);
static_assert(static_cast<int>(ElementType::kFloat32) == ST_FLOAT32 &&
              static_cast<int>(ElementType::kBfloat16) == ST_BFLOAT16 &&
              static_cast<int>(ElementType::kFloat16) == ST_FLOAT16);

constexpr size_t kTokenBytes = 32;

// The least time that connected ranks have to agree. Connecting and agreeing share one deadline, and the last rank may
// connect at its end.
constexpr absl::Duration kAgreementDeadlineMin = absl::Seconds(5);

// The sentence of this thread's last call that failed.
std::string& LastError() {
  thread_local std::string sentence;
  return sentence;
}

int CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ST_OK;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
      return ST_INVALID;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnavailable:
      return ST_PEER;
    default:
      return ST_INTERNAL;
  }
}

// Runs the body of a function of the interface. No exception leaves the library: the standard library's are for want of
// memory or threads.
template <typename Body>
int Call(Body body) {
  try {
    const absl::Status status = body();
    if (!status.ok()) LastError() = std::string(status.message());
    return CodeOf(status);
  } catch (const std::exception& error) {
    LastError() = error.what();
    return ST_INTERNAL;
  }
}

// A child of fork has a copy of the group, without its thread, whose locks may be held for ever.
absl::Status CheckOwner(const st_group* group) {
  if (group == nullptr) return absl::InvalidArgumentError("the group is null");
  if (group->process == getpid()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the group belongs to process ", group->process,
                                                 ", which has forked this one (", getpid(),
                                                 "): open a group of its own here"));
}

absl::Status CheckSeconds(const char* name, double seconds) {
  if (std::isfinite(seconds) && seconds > 0.0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", seconds, ", and must be more than 0"));
}

enum class Role { kRank, kServer };

absl::Status CheckOptions(const st_options& options, Role role) {
  if (options.topology != ST_STAR && options.topology != ST_RING) {
    return absl::InvalidArgumentError(
        absl::StrCat("topology ", options.topology, " is neither star (", ST_STAR, ") nor ring (", ST_RING, ")"));
  }
  const int first = role == Role::kRank ? 0 : options.world_size;
  const int count = role == Role::kRank ? options.world_size : options.server_count;
  // `options.rank - first` cannot overflow: the tests before it exclude a negative result.
  if (options.world_size < 1 || options.server_count < 0 || options.rank < first || options.rank - first >= count) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of ", options.world_size, " ranks and ",
                                                   options.server_count, " servers after them is no ",
                                                   role == Role::kRank ? "rank that trains" : "server"));
  }
  if (int64_t{options.world_size} + options.server_count > kWorldSizeMax) {
    return absl::InvalidArgumentError(absl::StrCat(options.world_size, " ranks and ", options.server_count,
                                                   " servers: at most ", kWorldSizeMax, " processes form a group"));
  }
  if (options.server_count > 0 && options.topology == ST_RING) {
    return absl::InvalidArgumentError(absl::StrCat("a ring has no servers, and server_count is ", options.server_count,
                                                   ": take a star, or no servers"));
  }
  if (options.rank != 0 && options.listener >= 0) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " has a listener, but rank 0 listens"));
  }
  RETURN_IF_ERROR(CheckSeconds("join_deadline_s", options.join_deadline_s));
  RETURN_IF_ERROR(CheckSeconds("exchange_deadline_s", options.exchange_deadline_s));
  RETURN_IF_ERROR(CheckSeconds("stall_report_s", options.stall_report_s));
  if (options.group_name == nullptr) return absl::InvalidArgumentError("group_name is null");
  if (options.world_size + options.server_count == 1) return absl::OkStatus();
  if (options.rendezvous == nullptr) return absl::InvalidArgumentError("rendezvous is null");
  ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(options.rendezvous), "rendezvous");
  if (options.token == nullptr && options.insecure == 0 && !IsLoopbackHost(place.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks that meet at ", options.rendezvous,
                     " without a token would let everyone on the network join: give all processes a token, meet at "
                     "127.0.0.1, or accept it by insecure"));
  }
  return absl::OkStatus();
}

// The rendezvous speaks of the worker's flags, which are fields of st_options here.
absl::Status InWordsOfOptions(const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrReplaceAll(status.message(),
                          {{"the same file as --job_secret", "the same token"},
                           {"give every rank the same file", "give every process the same token"},
                           {"--job_secret=FILE", "a token"},
                           {"--job_secret", "token"},
                           {"job secret", "token"},
                           {kFirewallWayOut, ""},
                           {"--port_range", "port_range"},
                           {"--rendezvous", "rendezvous"},
                           {"--world_size", "world_size"},
                           {"--run_id", "group_name"},
                           {"--server_ranks of the workers and --shard_count of the servers say", "server_count says"},
                           {"--server_ranks", "server_count"},
                           {"--insecure", "insecure"}}));
}

absl::StatusOr<std::unique_ptr<Group>> Open(const st_options* given, Role role) {
  if (given == nullptr) return absl::InvalidArgumentError("the options are null");
  if (given->struct_bytes != sizeof(st_options)) {
    return absl::InvalidArgumentError(absl::StrCat("st_options has ", given->struct_bytes,
                                                   " bytes, this library expects ", sizeof(st_options),
                                                   ": use the starring.h that came with it"));
  }
  const st_options& options = *given;
  // The socket is owned from here on, so that each error below closes it, as starring.h promises.
  Socket listening(options.listener);
  RETURN_IF_ERROR(CheckOptions(options, role));
  std::function<void(const std::string&)> say;
  if (options.say != nullptr) {
    say = [to = options.say, context = options.say_context](const std::string& line) { to(context, line.c_str()); };
  }
  const absl::Time begin = SteadyNow();
  const absl::Duration stall_report = BoundedDeadline(absl::Seconds(options.stall_report_s));
  Group::Options group = {.topology = static_cast<Topology>(options.topology),
                          .server_count = options.server_count,
                          .join_deadline = absl::Seconds(options.join_deadline_s),
                          .exchange_deadline = absl::Seconds(options.exchange_deadline_s),
                          .stall_report = absl::ToChronoMilliseconds(stall_report),
                          .say = say};
  if (options.gpu_memory != 0) group.gpu = {.ordinal = options.gpu, .bytes = options.gpu_bytes};
  TcpRendezvousOptions rendezvous = {.rank = options.rank,
                                     .world_size = options.world_size + options.server_count,
                                     .server_count = options.server_count,
                                     .rendezvous = options.rendezvous == nullptr ? "" : options.rendezvous,
                                     .run_id = options.group_name,
                                     .insecure = options.insecure != 0,
                                     .join_deadline = group.join_deadline,
                                     .exchange_deadline = group.exchange_deadline,
                                     .unexpected_bytes_max = GroupUnexpectedBytesMax(options.world_size),
                                     .stall_report = stall_report,
                                     .say = say};
  std::string wrong;
  if (options.port_range != nullptr && !AbslParseFlag(options.port_range, &rendezvous.ports, &wrong)) {
    return absl::InvalidArgumentError(absl::StrCat("port_range is \"", options.port_range, "\": ", wrong));
  }
  if (options.token != nullptr) rendezvous.token.assign(reinterpret_cast<const char*>(options.token), kTokenBytes);
  if (listening.fd() >= 0) {
    ASSIGN_OR_RETURN(rendezvous.listener, TcpListener::Adopt(std::move(listening), rendezvous.rendezvous));
  }
  absl::StatusOr<std::unique_ptr<Transport>> transport = ConnectFullMesh(std::move(rendezvous));
  if (!transport.ok()) return InWordsOfOptions(transport.status());
  // join_deadline is one limit for connecting and agreeing, so the time that connecting has taken is subtracted.
  const absl::Duration rest = absl::Floor(group.join_deadline - (SteadyNow() - begin), absl::Milliseconds(100));
  group.join_deadline = std::min(group.join_deadline, std::max(rest, kAgreementDeadlineMin));
  return Group::Create(*std::move(transport), std::move(group));
}

// Checks the arguments of a sum, and begins it by `begin`.
absl::Status BeginSum(st_group* group, const ReductionHead& head, void* data, int64_t* ticket,
                      absl::FunctionRef<absl::StatusOr<int64_t>(Group&, std::byte*)> begin) {
  RETURN_IF_ERROR(CheckOwner(group));
  // ElementBytes needs a known type, so the head is checked before the alignment.
  RETURN_IF_ERROR(CheckHead(head));
  if (ticket == nullptr || (data == nullptr && head.count > 0)) {
    return absl::InvalidArgumentError("an argument is null");
  }
  if (reinterpret_cast<uintptr_t>(data) % ElementBytes(head.type) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the array is not aligned for ", ElementTypeName(head.type)));
  }
  ASSIGN_OR_RETURN(*ticket, begin(*group->group, static_cast<std::byte*>(data)));
  return absl::OkStatus();
}

}  // namespace
}  // namespace starring

int st_open(const st_options* options, st_group** group) {
  return starring::Call([&]() -> absl::Status {
    if (group == nullptr) return absl::InvalidArgumentError("the place for the group is null");
    // A caller that ignores the code gets null, which every other function refuses or ignores.
    *group = nullptr;
    ASSIGN_OR_RETURN(std::unique_ptr<starring::Group> opened, starring::Open(options, starring::Role::kRank));
    *group = new st_group{.process = getpid(), .group = std::move(opened)};
    return absl::OkStatus();
  });
}

int st_serve(const st_options* options) {
  return starring::Call([&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<starring::Group> group, starring::Open(options, starring::Role::kServer));
    // Its ticket ends when the ranks have gone, whenever that is, or when the group breaks.
    std::optional<absl::Status> status;
    // Wait has a limit for its patience, so an endless wait is a loop.
    while (!status.has_value()) status = group->Wait(starring::Group::kServerTicket, std::chrono::hours(1));
    return *status;
  });
}

int st_allreduce(st_group* group, int64_t step, int32_t bucket, uint64_t layout, void* data, int64_t count,
                 int32_t type, float divisor, int64_t* ticket) {
  return starring::Call([&]() -> absl::Status {
    const starring::ReductionHead head = {.bucket = bucket,
                                          .step = step,
                                          .layout = layout,
                                          .count = count,
                                          .type = static_cast<starring::ElementType>(type),
                                          .divisor = divisor};
    return starring::BeginSum(group, head, data, ticket, [&head](starring::Group& opened, std::byte* elements) {
      return opened.Begin(head, elements);
    });
  });
}

int st_allreduce_gpu(st_group* group, int64_t step, int32_t bucket, uint64_t layout, void* data, int64_t count,
                     int32_t type, float divisor, void* stream, int64_t* ticket) {
  return starring::Call([&]() -> absl::Status {
    const starring::ReductionHead head = {.bucket = bucket,
                                          .step = step,
                                          .layout = layout,
                                          .count = count,
                                          .type = static_cast<starring::ElementType>(type),
                                          .divisor = divisor};
    return starring::BeginSum(group, head, data, ticket, [&](starring::Group& opened, std::byte* elements) {
      return opened.BeginOnGpu(head, elements, static_cast<starring::CudaDriver::Stream>(stream));
    });
  });
}

int st_describe(st_group* group, st_description* description) {
  return starring::Call([&]() -> absl::Status {
    RETURN_IF_ERROR(starring::CheckOwner(group));
    if (description == nullptr) return absl::InvalidArgumentError("the place for the description is null");
    if (description->struct_bytes != sizeof(st_description)) {
      return absl::InvalidArgumentError(absl::StrCat("st_description has ", description->struct_bytes,
                                                     " bytes, this library expects ", sizeof(st_description),
                                                     ": use the starring.h that came with it"));
    }
    const starring::Group& opened = *group->group;
    *description = {.struct_bytes = sizeof(st_description),
                    .adds_in_gpu_memory = opened.adds_on_gpu() ? 1 : 0,
                    .why_not = opened.gpu_refusal().c_str(),
                    .device_copies = opened.device_copy_count()};
    return absl::OkStatus();
  });
}

int st_wait(st_group* group, int64_t ticket, int64_t milliseconds) {
  // An error of CheckOwner keeps this value, so that its code is returned and not ST_TIMEOUT.
  bool has_ended = true;
  const int code = starring::Call([&]() -> absl::Status {
    RETURN_IF_ERROR(starring::CheckOwner(group));
    const std::optional<absl::Status> status = group->group->Wait(ticket, std::chrono::milliseconds(milliseconds));
    has_ended = status.has_value();
    return status.value_or(absl::OkStatus());
  });
  return has_ended ? code : ST_TIMEOUT;
}

const char* st_last_error(const st_group*) { return starring::LastError().c_str(); }

int st_abort(st_group* group, const char* why) {
  return starring::Call([&]() -> absl::Status {
    RETURN_IF_ERROR(starring::CheckOwner(group));
    group->group->Abort(absl::AbortedError(why == nullptr ? "no reason given" : why));
    return absl::OkStatus();
  });
}

int st_close(st_group* group) {
  if (group == nullptr) return ST_OK;
  return starring::Call([&]() -> absl::Status {
    RETURN_IF_ERROR(starring::CheckOwner(group));
    delete group;
    return absl::OkStatus();
  });
}
